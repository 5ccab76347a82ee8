// param_scale: what a parameter takes in training.
//
// Internal to //balance.
#ifndef BALANCE_MEMORY_PARAM_SCALE_H_
#define BALANCE_MEMORY_PARAM_SCALE_H_

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// In units of a parameter's own bytes: itself, its gradient and what the optimizer (none: null)
// keeps for it, as a plan of a small model has it.
double param_scale(const MakeOptimizer& optimizer, bool zero_grad);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_PARAM_SCALE_H_
