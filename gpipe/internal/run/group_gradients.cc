#include "gpipe/internal/run/group_gradients.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/replicas/reduction.h"

namespace gpipe::internal {
namespace {

using Leaf = GroupSums::Leaf;

void add_replicas(std::vector<Leaf>& leaves, const ModelState& model, const World& world,
                  int64_t groups_each) {
  std::vector<at::Tensor> parameters;  // the same list in this process of each replica
  absl::flat_hash_map<const c10::TensorImpl*, size_t> numbers;
  for (const ModelState::Parameter& parameter : model.parameters()) {
    // Those of other processes, and frozen ones.
    if (parameter.tensor.is_meta() || !parameter.tensor.requires_grad()) continue;
    numbers.emplace(parameter.tensor.unsafeGetTensorImpl(), parameters.size());
    parameters.push_back(parameter.tensor);
  }
  std::vector<at::Tensor> sums(parameters.size());
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators(parameters.size());
  for (Leaf& leaf : leaves) {
    const auto number = numbers.find(leaf.leaf.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(number != numbers.end(), "a tensor of shape ", leaf.leaf.sizes(),
                      " that no layer has registered requires a gradient (one that the loss "
                      "function uses, say), and each replica would have its own; register it in a "
                      "layer (register_parameter), or detach() it");
    sums[number->second] = std::move(leaf.sum);
    accumulators[number->second] = std::move(leaf.accumulator);
  }
  leaves.clear();
  sum_over_replicas(world, parameters, groups_each, sums);
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (!sums[k].defined()) continue;
    if (accumulators[k] == nullptr) {  // nothing arrived in this replica
      TORCH_CHECK_VALUE(parameters[k].requires_grad(), "a parameter of shape ",
                        parameters[k].sizes(),
                        " requires a gradient in another replica, and not in this one");
      accumulators[k] = torch::autograd::impl::grad_accumulator(parameters[k]);
    }
    leaves.push_back({std::move(accumulators[k]), parameters[k], std::move(sums[k])});
  }
}

}  // namespace

void accumulate_groups(std::vector<GroupSums>& stages, const ModelState& model, const World& world,
                       int64_t groups_each) {
  const c10::NoGradGuard no_grad;
  std::vector<Leaf> leaves;
  for (GroupSums& stage : stages) {
    for (Leaf& leaf : stage.take()) leaves.push_back(std::move(leaf));
  }
  if (world.replicas() > 1) add_replicas(leaves, model, world, groups_each);
  for (Leaf& leaf : leaves) {
    c10::OptionalDeviceGuard guard;
    if (!leaf.leaf.device().is_cpu()) guard.reset_device(leaf.leaf.device());
    // Not through the engine, which would show the sum to the leaf's own hooks.
    torch::autograd::variable_list sum;
    sum.push_back(std::move(leaf.sum));
    (*leaf.accumulator)(std::move(sum));
  }
}

}  // namespace gpipe::internal
