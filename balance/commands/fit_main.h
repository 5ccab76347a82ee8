// fit_main: the command //balance:fit for a user's own model; make_model() returns it as a Training
// (balance/choose/training.h).
//
//   int main(int argc, char** argv) { return gpipe::fit_main(argc, argv, make_model); }
//
// The program finds how to cut the model so that it can be trained on given devices. Its flags are
// those of //balance:fit (see --help) except the zoo's: `--devices_gib=22,22`. If nothing fits, it
// prints the reason and its exit code is 1. docs/guide/18-does-it-fit.md shows it.
#ifndef BALANCE_COMMANDS_FIT_MAIN_H_
#define BALANCE_COMMANDS_FIT_MAIN_H_

#include "balance/choose/training.h"

namespace gpipe {

// Call it as balance_main() (balance/commands/balance_main.h); it has the same exit codes.
// Training::make is called inside a MetaScope only.
int fit_main(int argc, const char* const* argv, const balance::MakeTraining& make_model);

}  // namespace gpipe

#endif  // BALANCE_COMMANDS_FIT_MAIN_H_
