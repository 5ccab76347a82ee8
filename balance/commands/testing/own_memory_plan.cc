// //balance:memory_plan with a test's own network.

#include "balance/commands/memory_plan_main.h"
#include "balance/commands/testing/own_network.h"

int main(int argc, char** argv) { return gpipe::memory_plan_main(argc, argv, make_model); }
