// plan_main: the command //balance:plan for a model of your own, of which make_model() gives a
// Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::plan_main(argc, argv, make_model); }
//
// The program chooses how the model is trained on given devices, by the same flags as
// //balance:plan
// (--help lists them) but --model and --image_size: `--devices=8 --memory=22GiB
// --output=plan.json`. docs/guide/20-which-schedule.md shows it.
#ifndef BALANCE_COMMANDS_PLAN_MAIN_H_
#define BALANCE_COMMANDS_PLAN_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// As balance_main() (balance/commands/balance_main.h) is to be called, with the same exit codes.
// Training::make is called within a MetaScope, and with --measure=cpu without one, too.
int plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_PLAN_MAIN_H_
