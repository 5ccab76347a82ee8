// Shows what each device holds: `//:language_model_memory_plan -- --balance=5,6 --chunks=4`.
#include "balance/commands/memory_plan_main.h"
#include "language_model.h"

int main(int argc, char** argv) { return gpipe::memory_plan_main(argc, argv, make_model); }
