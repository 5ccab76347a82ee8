#include "balance/memory/param_scale.h"

#include <ATen/ops/empty.h>
#include <torch/nn/modules/linear.h>

#include "meta/meta_scope.h"

namespace gpipe::balance {

double param_scale(const MakeOptimizer& optimizer, bool zero_grad) {
  const torch::nn::Sequential model = [] {
    const MetaScope scope;
    return torch::nn::Sequential(torch::nn::Linear(64, 64));
  }();
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); };
  const Tensors inputs = {at::empty({1, 64}, at::TensorOptions().device(at::kMeta))};
  const MemoryPlan plan = memory_plan(
      model, inputs, {}, loss, MemoryPlanOptions({1}).optimizer(optimizer).zero_grad(zero_grad));
  const DeviceMemory& device = plan.devices.at(0);
  return static_cast<double>(device.parameters + device.gradients + device.optimizer_state) /
         static_cast<double>(device.parameters);
}

}  // namespace gpipe::balance
