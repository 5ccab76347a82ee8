#include "gpipe/optim/fused_step.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <unordered_set>

namespace gpipe::internal {

FusedLists& batch_of(FusedBatches& batches, const at::Tensor& parameter, int64_t number) {
  return batches[{parameter.device().str(), parameter.scalar_type(), number}];
}

at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor) {
  if (tensor.strides() == parameter.strides() && tensor.scalar_type() == parameter.scalar_type()) {
    return tensor;
  }
  return at::empty_like(parameter).copy_(tensor);
}

TensorList steps_of(const FusedLists& lists, int64_t steps) {
  const at::Tensor value =
      at::full({}, static_cast<double>(steps),
               at::TensorOptions(lists.parameters.front().device()).dtype(at::kFloat));
  return TensorList(lists.parameters.size(), value);
}

void check_for_kernels(
    const torch::optim::Optimizer& optimizer, const char* name,
    const std::function<bool(const torch::optim::OptimizerParamGroup&)>& is_fused,
    void (*check_kernel)(const at::Tensor& parameter)) {
  size_t next = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const at::Tensor& parameter : group.params()) {
      const size_t number = next++;
      if (!parameter.grad().defined()) continue;
      // If a parameter came twice, one call of a kernel would update it twice, both times as the
      // same step and from the same old values.
      TORCH_CHECK_VALUE(seen.insert(parameter.unsafeGetTensorImpl()).second, "gpipe::", name,
                        ": parameter ", number,
                        " is in its group a second time; give the optimizer each parameter once, "
                        "as GPipe::parameters() and GPipe::local_parameters() list them");
      TORCH_CHECK_VALUE(
          !parameter.grad().is_sparse(), "gpipe::", name, ": the gradient of parameter ", number,
          " is sparse, which it does not take; use an optimizer of torch::optim for it");
      TORCH_CHECK_VALUE(!parameter.is_complex(), "gpipe::", name, ": parameter ", number, " is ",
                        parameter.scalar_type(),
                        ", which it does not take; use an optimizer of torch::optim for it");
      TORCH_CHECK_VALUE(
          (is_fused != nullptr && !is_fused(group)) || parameter.is_non_overlapping_and_dense(),
          "gpipe::", name, ": parameter ", number, " of shape ", parameter.sizes(),
          " has the strides ", parameter.strides(),
          ": its elements share memory, or leave gaps; make it contiguous before the optimizer, or "
          "use an optimizer of torch::optim for it");
      if (check_kernel != nullptr && parameter.numel() > 0) check_kernel(parameter);
    }
  }
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const c10::AutoGradMode enable_grad(true);
  return closure();
}

TensorList updated_in(const torch::optim::OptimizerParamGroup& group) {
  TensorList updated;
  for (const at::Tensor& parameter : group.params()) {
    if (parameter.grad().defined() && parameter.numel() > 0) updated.push_back(parameter);
  }
  return updated;
}

}  // namespace gpipe::internal
