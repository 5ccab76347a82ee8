#include "gpipe/internal/call/unscaling.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {
namespace {

// The arguments of one call of `_amp_foreach_non_finite_check_and_unscale_`: gradients of one type
// on one device, and the tensor for its result.
struct Group {
  std::vector<at::Tensor> gradients;
  at::Tensor found;  // [1] float32: 1 if a gradient is not finite
};

// The values of a gradient. For a sparse gradient they are the values of its sum, because an entry
// may stand in it twice.
at::Tensor values_of(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kSparse) return gradient;
  if (!gradient.is_coalesced()) parameter.mutable_grad() = gradient.coalesce();
  return parameter.grad()._values();
}

bool all_finite_here(const std::vector<at::Tensor>& parameters, float inverse) {
  std::map<std::pair<std::string, at::ScalarType>, Group> groups;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;  // tied: divided once
    const at::Tensor values = values_of(parameter);
    groups[{values.device().str(), values.scalar_type()}].gradients.push_back(values);
  }
  for (auto& [key, group] : groups) {
    const at::TensorOptions on_device =
        at::TensorOptions(group.gradients.front().device()).dtype(at::kFloat);
    group.found = at::zeros({1}, on_device);
    at::_amp_foreach_non_finite_check_and_unscale_(group.gradients, group.found,
                                                   at::full({}, inverse, on_device));
  }
  // Only here the host waits for the devices.
  return std::all_of(groups.begin(), groups.end(), [](const auto& entry) {
    return entry.second.found.template item<float>() == 0;
  });
}

}  // namespace

bool unscale_gradients(const std::vector<at::Tensor>& parameters, double loss_scale,
                       const World& world, const std::string& name) {
  const auto inverse = static_cast<float>(1 / loss_scale);  // as LibTorch's kernel takes it
  TORCH_CHECK_VALUE(inverse > 0 && std::isfinite(inverse),
                    "gradients are divided by a positive, finite float32, got ", loss_scale);
  const c10::NoGradGuard no_grad;
  const bool here = all_finite_here(parameters, inverse);
  if (world.processes() == nullptr) return here;
  const std::vector<std::string> of_all =
      world.processes()->exchange(name, here ? "finite" : "", /*is_patient=*/false);
  return std::all_of(of_all.begin(), of_all.end(),
                     [](const std::string& value) { return !value.empty(); });
}

}  // namespace gpipe::internal
