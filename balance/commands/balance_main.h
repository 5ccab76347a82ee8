// balance_main: the command //balance for a user's own model; make_model() returns it as a Training
// (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
//
// The program measures the model's layers or reads a saved profile, cuts the model into partitions
// and explains the cut. Its flags are those of //balance (see --help), except --model and
// --image_size: `--partitions=4 --chunks=8`. docs/guide/04-cutting.md shows it.
#ifndef BALANCE_COMMANDS_BALANCE_MAIN_H_
#define BALANCE_COMMANDS_BALANCE_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// Call it first in main, and once. It returns the program's exit code: 0; 1 for an error while
// running; 2 for wrong usage; 130 after Ctrl-C.
//
// `make_model` is called after the flags are read, so it may use flags of its own (ABSL_FLAG).
// Their names must differ from the command's, and a program can have only one of these commands. It
// throws std::invalid_argument for wrong flags. Training::make is called inside a MetaScope to
// count layers, and outside of one to measure. Training::targets and ::loss are not used: a layer's
// time is that of its forward and backward.
int balance_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_BALANCE_MAIN_H_
