// The command //balance:memory_plan, for the networks of the zoo.

#include "balance/commands/zoo_main.h"

int main(int argc, char** argv) { return gpipe::balance::zoo_main(argc, argv, "memory_plan"); }
