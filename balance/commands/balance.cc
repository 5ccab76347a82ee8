// The command //balance, for the networks of the zoo. Its first word may name one
// of the others.

#include "balance/commands/zoo_main.h"

int main(int argc, char** argv) { return gpipe::balance::zoo_main(argc, argv); }
