// fit_main: the command //balance:fit for a model of your own, of which make_model() gives a
// Training (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::fit_main(argc, argv, make_model); }
//
// The program finds how the model must be cut to be trained on given devices, by the same flags as
// //balance:fit (--help lists them) but those of the zoo: `--devices_gib=22,22`. If nothing fits,
// it says what is in the way, and its exit code is 1. docs/guide/18-does-it-fit.md shows it.
#ifndef BALANCE_COMMANDS_FIT_MAIN_H_
#define BALANCE_COMMANDS_FIT_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// As balance_main() (balance/commands/balance_main.h) is to be called, with the same exit codes.
// Training::make is called within a MetaScope only.
int fit_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_FIT_MAIN_H_
