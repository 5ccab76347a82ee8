#include "examples/common/token_loss.h"

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace examples {

at::Tensor mean_loss(const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& targets) {
  namespace F = torch::nn::functional;
  // The loss is computed in float32, whatever type autocast has given to the logits.
  return F::cross_entropy(outputs.at(0).flatten(0, 1).to(at::kFloat), targets.at(0).flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(kIgnored));
}

double count_tokens(const std::vector<at::Tensor>& targets) {
  return targets.at(0).ne(kIgnored).sum().item<double>();
}

AdamWGroups adamw_groups(const std::vector<at::Tensor>& parameters, double weight_decay) {
  using torch::optim::AdamWOptions;
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : parameters) {
    (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  }
  const auto options = [](double decay) {
    auto adamw_options = std::make_unique<AdamWOptions>();
    adamw_options->betas({0.9, 0.95}).weight_decay(decay);
    return adamw_options;
  };
  AdamWGroups result;
  result.defaults = *options(weight_decay);
  result.groups.emplace_back(matrices, options(weight_decay));
  result.groups.emplace_back(others, options(0));
  return result;
}

double LearningRate::at(int64_t step) const {
  if (step < warm_up) return highest * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  constexpr double kLeast = 0.1, kPi = 3.14159265358979323846;
  const auto done = static_cast<double>(step - warm_up);
  const auto all = static_cast<double>(std::max<int64_t>(steps - warm_up, 1));
  return highest * (kLeast + (1 - kLeast) * (1 + std::cos(kPi * std::min(done / all, 1.0))) / 2);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace examples
