// Finds how to cut the language model: `//:language_model_balance -- --partitions=2 --chunks=4`.
#include "balance/commands/balance_main.h"
#include "language_model.h"

int main(int argc, char** argv) { return gpipe::balance_main(argc, argv, make_model); }
