// plan_main: the command //balance:plan for a user's own model; make_model() returns it as a
// Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::plan_main(argc, argv, make_model); }
//
// The program chooses how to train the model on given devices. Its flags are those of
// //balance:plan (see --help), except --model and --image_size: `--devices=8 --memory=22GiB
// --output=plan.json`. docs/guide/20-which-schedule.md shows it.
#ifndef BALANCE_COMMANDS_PLAN_MAIN_H_
#define BALANCE_COMMANDS_PLAN_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// Call it as balance_main() (balance/commands/balance_main.h); it has the same exit codes.
// Training::make is called inside a MetaScope, and with --measure=cpu also outside of one.
int plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_PLAN_MAIN_H_
