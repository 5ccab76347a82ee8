// memory_plan_main: the command //balance:memory_plan for a user's own model; make_model() returns
// it as a Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::memory_plan_main(argc, argv, make_model); }
//
// The program prints what each device would hold while the model is trained. Its flags are those of
// //balance:memory_plan (see --help), except --model and --image_size: `--balance=3,5 --chunks=8`.
// docs/guide/18-does-it-fit.md shows it.
#ifndef BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
#define BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// Call it as balance_main() (balance/commands/balance_main.h); it has the same exit codes.
// Training::make is called inside a MetaScope only.
int memory_plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
