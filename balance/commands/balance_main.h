// balance_main and others: the commands of //balance for a user's own model; make_model() returns
// it as a Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
//
// The first word of this program's command line may name the command: `fit --devices_gib=22,22`.
// Without one, or named balance, it measures the model's layers or reads a saved profile, cuts the
// model into partitions and explains the cut. The flags are those of the zoo's commands (see
// --help), except the ones that choose a network of the zoo.
//
// Programs of one command each are made with the functions of their names:
//   balance      where to cut: `--partitions=4 --chunks=8` (docs/guide/04-cutting.md)
//   memory_plan  what each device holds: `--balance=3,5 --chunks=8` (docs/guide/18-does-it-fit.md)
//   fit          how to cut the model so that it can be trained on given devices:
//                `--devices_gib=22,22`; if nothing fits, the exit code is 1 (the same chapter)
//   plan         everything together: `--devices=8 --memory=22GiB --output=plan.json`
//                (docs/guide/20-which-schedule.md)
#ifndef BALANCE_COMMANDS_BALANCE_MAIN_H_
#define BALANCE_COMMANDS_BALANCE_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// Call one of them first in main, and once. It returns the program's exit code: 0; 1 for an error
// while running; 2 for wrong usage; 130 after Ctrl-C.
//
// `make_model` is called after the flags are read, so it may use flags of its own (ABSL_FLAG).
// Their names must differ from the command's. It throws std::invalid_argument for wrong flags.
// Training::make is called inside a MetaScope to count layers and to plan, and outside of one to
// measure: by balance, and by plan with --measure=cpu. balance does not use Training::targets and
// ::loss: a layer's time is that of its forward and backward.
int balance_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);
int memory_plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);
int fit_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);
int plan_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_BALANCE_MAIN_H_
