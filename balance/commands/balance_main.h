// balance_main: the command //balance for a model of your own, of which make_model() gives a
// Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
//
// The program measures the model's layers, or reads a saved profile, cuts the model into partitions
// and explains the cut, by the same flags as //balance (--help lists them) but --model and
// --image_size: `--partitions=4 --chunks=8`. docs/guide/04-cutting.md shows it.
#ifndef BALANCE_COMMANDS_BALANCE_MAIN_H_
#define BALANCE_COMMANDS_BALANCE_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// To be called first in main, and once; what it returns is the program's exit code: 0; 1 for an
// error while running; 2 for wrong usage; 130 after Ctrl-C.
//
// `make_model` is called when the flags have been read, so that it may use flags of its own
// (ABSL_FLAG; those of the command, as --help lists them, have their names already, and of these
// programs' mains one can be in a program). It throws std::invalid_argument for wrong ones.
// Training::make is called within a MetaScope, to count layers, and without one, to measure.
// Training::targets and ::loss are not used: a layer's time is that of its forward and backward.
int balance_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_BALANCE_MAIN_H_
