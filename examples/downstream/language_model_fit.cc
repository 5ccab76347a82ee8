// Finds whether the language model fits, and how:
// `//:language_model_fit -- --devices_gib=0.01,0.01`.
#include "balance/commands/fit_main.h"
#include "language_model.h"

int main(int argc, char** argv) { return gpipe::fit_main(argc, argv, make_model); }
