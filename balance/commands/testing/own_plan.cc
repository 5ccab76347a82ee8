// //balance:plan with a test's own network.

#include "balance/commands/plan_main.h"
#include "balance/commands/testing/own_network.h"

int main(int argc, char** argv) { return gpipe::plan_main(argc, argv, make_model); }
