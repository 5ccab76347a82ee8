// Finds how to train the language model fastest:
// `//:language_model_plan -- --devices=2 --memory=1GiB`.
#include "balance/commands/plan_main.h"
#include "language_model.h"

int main(int argc, char** argv) { return gpipe::plan_main(argc, argv, make_model); }
