// param_scale: how much memory training needs for a parameter.
//
// Internal to //balance.
#ifndef BALANCE_MEMORY_PARAM_SCALE_H_
#define BALANCE_MEMORY_PARAM_SCALE_H_

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// Returns the bytes that training needs for each byte of a parameter: the parameter, its gradient
// and what the optimizer (null: none) keeps for it. They are found by a plan of a small model.
double param_scale(const MakeOptimizer& optimizer, bool zero_grad);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_PARAM_SCALE_H_
