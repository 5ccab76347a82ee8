// //balance with a test's own network.

#include "balance/commands/balance_main.h"
#include "balance/commands/testing/own_network.h"

int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
