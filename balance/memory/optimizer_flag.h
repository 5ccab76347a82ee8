// parse_optimizer: parses the commands' flag --optimizer.
#ifndef BALANCE_MEMORY_OPTIMIZER_FLAG_H_
#define BALANCE_MEMORY_OPTIMIZER_FLAG_H_

#include <string>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// Values: "none" (null), "sgd", "momentum" (SGD with momentum), "rmsprop", "adagrad", "adam",
// "adamw". The optimizers have LibTorch's defaults, as a plan only needs the state that they keep.
// Throws std::invalid_argument for any other text.
MakeOptimizer parse_optimizer(const std::string& text);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_OPTIMIZER_FLAG_H_
