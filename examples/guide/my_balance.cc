// //balance for a model of one's own, as chapter 4 shows it.

#include "balance/commands/balance_main.h"
#include "examples/guide/my_training.h"

// [my_balance]
int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
// [/my_balance]
