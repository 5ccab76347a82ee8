// memory_plan_main: the command //balance:memory_plan for a model of your own, of which
// make_model() gives a Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::memory_plan_main(argc, argv, make_model); }
//
// The program tells what each device would hold while the model is trained, by the same flags as
// //balance:memory_plan (--help lists them) but --model and --image_size: `--balance=3,5
// --chunks=8`. docs/guide/18-does-it-fit.md shows it.
#ifndef BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
#define BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// As balance_main() (balance/commands/balance_main.h) is to be called, with the same exit codes.
// Training::make is called within a MetaScope only.
int memory_plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_MEMORY_PLAN_MAIN_H_
