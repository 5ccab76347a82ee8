// memory_options: how the memory of a fit is planned.
#ifndef BALANCE_CHOOSE_FIT_MEMORY_H_
#define BALANCE_CHOOSE_FIT_MEMORY_H_

#include <cstdint>
#include <vector>

#include "balance/choose/fit.h"
#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// The options of a plan with all micro-batches of the fit, and without progress. `shared_inputs`:
// as in the Training.
MemoryPlanOptions memory_options(const Fit& fit, const std::vector<int64_t>& shared_inputs,
                                 const FitOptions& options);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_FIT_MEMORY_H_
