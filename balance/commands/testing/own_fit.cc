// //balance:fit with a test's own network.

#include "balance/commands/fit_main.h"
#include "balance/commands/testing/own_network.h"

int main(int argc, char** argv) { return gpipe::fit_main(argc, argv, make_model); }
