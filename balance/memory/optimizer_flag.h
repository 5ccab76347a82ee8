// parse_optimizer: what the values of the commands' flag --optimizer mean.
#ifndef BALANCE_MEMORY_OPTIMIZER_FLAG_H_
#define BALANCE_MEMORY_OPTIMIZER_FLAG_H_

#include <string>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// "none", "sgd", "momentum" (SGD with it), "rmsprop", "adagrad", "adam", "adamw". With LibTorch's
// defaults; what a plan needs of an optimizer is what it keeps. None: null. Throws
// std::invalid_argument for any other text.
MakeOptimizer parse_optimizer(const std::string& text);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_OPTIMIZER_FLAG_H_
