// counted_step: the memory of a real step on the CPU, and the same step's plan. For tests.
//
// Every comparison of a plan with a real step goes through counted_on_cpu(). So it knows which
// operators were compared (compared_operators.h).
#ifndef BALANCE_MEMORY_COUNTED_STEP_H_
#define BALANCE_MEMORY_COUNTED_STEP_H_

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "balance/memory/memory_plan.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/schedule.h"
#include "meta/meta_scope.h"

namespace gpipe::balance {

inline at::TensorOptions on_meta(c10::ScalarType type = at::kFloat) {
  return at::TensorOptions().device(at::kMeta).dtype(type);
}

template <typename Make>
torch::nn::Sequential on_meta(const Make& make) {
  const MetaScope scope;
  return make();
}

// A loss function: the mean of the squares of the first output.
at::Tensor squares(const Tensors& outputs, const Tensors& targets);

struct Case {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> input;  // the input's shape
  std::vector<int64_t> balance;
  int64_t words = 0;                  // above 0: the inputs are token ids below it
  c10::ScalarType type = at::kFloat;  // the input's type
};

// Trains the case for two steps, all stages on the one CPU, with `squares` as its loss and the
// options' optimizer. `all`: include the temporary memory of kernels.
MemoryTrace counted_on_cpu(const Case& c, const MemoryPlanOptions& options, bool all = false);

// The operators that the steps of counted_on_cpu() used so far in this process, as
// OperatorCensus::calls() names them.
const std::set<std::string>& counted_operators();

// The real peak divided by the planned one for a step on the CPU with one stage and two
// micro-batches, including all temporary memory of kernels; and the range that the plan names.
struct RealToPlanned {
  double ratio = 0;
  MeasuredRange said;
  bool measured = true;  // false if the plan says "not measured"
};

RealToPlanned compared(const std::function<torch::nn::Sequential()>& make,
                       std::vector<int64_t> input, c10::ScalarType type = at::kFloat,
                       const ScheduleGenerator& schedule = &Schedule::one_f_one_b,
                       const std::string& optimizer = "momentum");

// Expects that the ratio is within the range that the plan names, up to 1 %. A plan that names no
// operator must be right within 1 %.
void expect_within_what_it_says(const RealToPlanned& result, const std::string& with);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_COUNTED_STEP_H_
