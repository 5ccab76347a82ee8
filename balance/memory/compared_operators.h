// compared_operators: the operators whose memory plans were compared with real steps. Internal to
// balance/memory.
#ifndef BALANCE_MEMORY_COMPARED_OPERATORS_H_
#define BALANCE_MEMORY_COMPARED_OPERATORS_H_

#include <c10/core/DeviceType.h>

#include <optional>
#include <set>
#include <string>

#include "balance/memory/plan_uncertainty.h"

namespace gpipe::balance {

// The operators whose memory was compared, as OperatorCensus::calls() names them. The test
// memory_plan_test checks that these are exactly the operators that it compares.
const std::set<std::string>& compared_operators();

// Names the operators of `calls` that neither compared_operators() has nor uncertainties() for
// `device` names; nullopt if there are none. If an operator is named, its gradient is not.
std::optional<Uncertainty> never_compared(const std::set<std::string>& calls,
                                          c10::DeviceType device);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_COMPARED_OPERATORS_H_
