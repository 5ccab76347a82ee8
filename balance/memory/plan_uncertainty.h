// plan_uncertainty: which operators make a memory plan uncertain, and by how much.
#ifndef BALANCE_MEMORY_PLAN_UNCERTAINTY_H_
#define BALANCE_MEMORY_PLAN_UNCERTAINTY_H_

#include <c10/core/DeviceType.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gpipe::balance {

// What real steps with these operators took at most, divided by their plan.
struct MeasuredRange {
  double low = 1;
  double high = 1;
};

struct Uncertainty {
  std::string operators;               // in words: "convolutions"
  std::optional<MeasuredRange> range;  // none: nobody has measured it
  std::string why;
};

// Of a plan for devices of this type (c10::kCPU or c10::kCUDA) in which these operators of LibTorch
// ran ("aten::mm", "aten::mm(bfloat16)", as OperatorCensus names them). docs/design/memory_plan.md
// says where the ranges are from.
std::vector<Uncertainty> uncertainties(const std::set<std::string>& operators,
                                       c10::DeviceType device);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_PLAN_UNCERTAINTY_H_
