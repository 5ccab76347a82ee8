// //balance:fit for a model of one's own, as chapter 18 shows it.

#include "balance/commands/fit_main.h"
#include "examples/guide/my_training.h"

// [my_fit]
// #include "balance/commands/fit_main.h"
int main(int argc, char** argv) { return gpipe::fit_main(argc, argv, make_model); }
// [/my_fit]
