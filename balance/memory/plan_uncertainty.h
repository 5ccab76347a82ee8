// plan_uncertainty: finds the operators that make a memory plan uncertain, and by how much.
#ifndef BALANCE_MEMORY_PLAN_UNCERTAINTY_H_
#define BALANCE_MEMORY_PLAN_UNCERTAINTY_H_

#include <c10/core/DeviceType.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gpipe::balance {

// The lowest and highest ratio of real memory to planned memory in measured steps with these
// operators.
struct MeasuredRange {
  double low = 1;
  double high = 1;
};

struct Uncertainty {
  std::string operators;               // a description: "convolutions"
  std::optional<MeasuredRange> range;  // none: not measured
  std::string why;
};

// Returns the uncertainties of a plan for devices of type `device` (c10::kCPU or c10::kCUDA) in
// which `operators` ran, as OperatorCensus names them ("aten::mm", "aten::mm(bfloat16)").
// docs/design/memory_plan.md gives the origin of the ranges.
std::vector<Uncertainty> uncertainties(const std::set<std::string>& operators,
                                       c10::DeviceType device);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_PLAN_UNCERTAINTY_H_
