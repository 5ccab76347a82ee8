#include "gpipe/internal/run/group_gradients.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/replicas/reduction.h"
#include "gpipe/internal/replicas/signatures.h"
#include "text/shown.h"

namespace gpipe::internal {

using Leaf = GroupSums::Leaf;

namespace {

void check_can_be_summed(const std::string& name, const at::Tensor& parameter,
                         const at::Tensor& sum) {
  TORCH_CHECK_VALUE(sum.layout() == c10::kStrided && sum.scalar_type() == parameter.scalar_type() &&
                        sum.sizes() == parameter.sizes(),
                    "the gradient of ", text::in_quotes(name), ", of layout ", sum.layout(),
                    ", type ", sum.dtype(), " and shape ", sum.sizes(),
                    ", cannot be added up over replicas: its parameter is of type ",
                    parameter.dtype(), " and shape ", parameter.sizes(),
                    ", and only dense gradients of that kind are (an embedding "
                    "without sparse(true), say)");
}

}  // namespace

GroupGradients::GroupGradients(std::vector<GroupSums>& stages, const ModelState& model,
                               const World& world, int64_t groups_each)
    : world_(world) {
  const c10::NoGradGuard no_grad;
  for (GroupSums& stage : stages) {
    for (Leaf& leaf : stage.take()) leaves_.push_back(std::move(leaf));
  }
  if (world.replicas() > 1) reduce(model, groups_each);
}

void GroupGradients::reduce(const ModelState& model, int64_t groups_each) {
  absl::flat_hash_map<const c10::TensorImpl*, size_t> numbers;
  std::vector<const std::string*> names;  // [parameter]
  for (const ModelState::Parameter& parameter : model.parameters()) {
    if (parameter.tensor.is_meta()) continue;  // another process has it
    numbers.emplace(parameter.tensor.unsafeGetTensorImpl(), parameters_.size());
    parameters_.push_back(parameter.tensor);
    names.push_back(&parameter.name);
  }
  std::vector<at::Tensor> sums(parameters_.size());
  std::vector<NodePtr> accumulators(parameters_.size());
  for (Leaf& leaf : leaves_) {
    const auto number = numbers.find(leaf.leaf.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(number != numbers.end(), "a tensor of shape ", leaf.leaf.sizes(),
                      " that no layer has registered requires a gradient (one that the loss "
                      "function uses, say), and each replica would have its own; register it in a "
                      "layer (register_parameter), or detach() it");
    if (leaf.sum.defined()) check_can_be_summed(*names[number->second], leaf.leaf, leaf.sum);
    sums[number->second] = std::move(leaf.sum);
    accumulators[number->second] = std::move(leaf.accumulator);
  }
  leaves_.clear();
  are_summed_ = sum_over_replicas(world_, parameters_, groups_each, sums);
  if (!are_summed_) return;
  for (size_t k = 0; k < parameters_.size(); ++k) {
    if (!sums[k].defined()) continue;
    if (accumulators[k] == nullptr) {  // nothing arrived in this replica
      accumulators[k] = torch::autograd::impl::grad_accumulator(parameters_[k]);
    }
    leaves_.push_back({std::move(accumulators[k]), parameters_[k], std::move(sums[k])});
  }
}

void GroupGradients::accumulate() {
  const c10::NoGradGuard no_grad;
  if (world_.replicas() > 1) {
    agree_on_signatures(world_, "the parameters", parameters_);
    TORCH_INTERNAL_ASSERT(are_summed_);
  }
  for (Leaf& leaf : std::exchange(leaves_, {})) {
    c10::OptionalDeviceGuard guard;
    if (!leaf.leaf.device().is_cpu()) guard.reset_device(leaf.leaf.device());
    // Autograd's engine is not used, because it would call the leaf's own hooks with the sum.
    torch::autograd::variable_list sum;
    sum.push_back(std::move(leaf.sum));
    (*leaf.accumulator)(std::move(sum));
  }
}

}  // namespace gpipe::internal
