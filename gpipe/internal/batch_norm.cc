#include "gpipe/internal/batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/internal/operator_mode.h"

namespace gpipe::internal {
namespace {

thread_local RunningStatisticsScope* current_scope = nullptr;

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  OperatorModePause pause;
  RunningStatisticsScope* scope = RunningStatisticsScope::current();
  const bool tracks = training && running_mean && running_mean->defined();
  if (scope == nullptr || scope->policy() == RunningStatistics::kUpdate || !tracks) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                          cudnn_enabled);
  }
  at::Tensor output =
      at::batch_norm(input, weight, bias, {}, {}, /*training=*/true, momentum, eps, cudnn_enabled);
  if (scope->policy() == RunningStatistics::kDefer) {
    scope->deferred()->add(input, *running_mean, *running_var, momentum);
  }
  return output;
}

template <typename BatchNorm>
bool add_counter(torch::nn::Module& module, std::vector<RunningStatisticsScope::Module>& found) {
  auto* norm = dynamic_cast<BatchNorm*>(&module);
  if (norm == nullptr) return false;
  if (norm->num_batches_tracked.defined()) found.push_back({&norm->num_batches_tracked, {}});
  return true;
}

}  // namespace

void DeferredStatistics::add(const at::Tensor& input, const at::Tensor& running_mean,
                             const at::Tensor& running_var, double momentum) {
  c10::NoGradGuard no_grad;
  const int64_t elements = input.size(1) == 0 ? 0 : input.numel() / input.size(1);
  if (elements == 0) return;
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  auto [variance, mean] = at::var_mean(input.detach().to(at::kDouble), dims, /*correction=*/0);
  at::Tensor squared_deviation = variance * static_cast<double>(elements);
  Moments& moments = moments_[running_mean.unsafeGetTensorImpl()];
  moments.running_mean = running_mean;
  moments.running_var = running_var;
  moments.momentum = momentum;
  if (moments.elements == 0) {
    moments.mean = mean;
    moments.squared_deviation = squared_deviation;
  } else {
    const double total = static_cast<double>(moments.elements + elements);
    const at::Tensor delta = mean - moments.mean;
    moments.mean = moments.mean + delta * (static_cast<double>(elements) / total);
    moments.squared_deviation =
        moments.squared_deviation + squared_deviation +
        delta * delta *
            (static_cast<double>(moments.elements) * static_cast<double>(elements) / total);
  }
  moments.elements += elements;
}

void DeferredStatistics::count(const at::Tensor& num_batches_tracked) {
  for (const at::Tensor& known : counters_) {
    if (known.is_same(num_batches_tracked)) return;
  }
  counters_.push_back(num_batches_tracked);
}

void DeferredStatistics::commit() {
  c10::NoGradGuard no_grad;
  for (auto& [key, moments] : moments_) {
    // Unbiased like the operator's own update; one element per channel gives the same infinity
    // there.
    const at::Tensor variance =
        moments.squared_deviation / static_cast<double>(moments.elements - 1);
    auto blend = [&](const at::Tensor& running, const at::Tensor& fresh) {
      const at::Tensor old = running.to(at::kDouble);
      running.copy_(old * (1 - moments.momentum) + fresh.to(running.device()) * moments.momentum);
    };
    blend(moments.running_mean, moments.mean);
    blend(moments.running_var, variance);
  }
  for (at::Tensor& counter : counters_) counter.add_(1);
  moments_.clear();
  counters_.clear();
}

RunningStatisticsScope::RunningStatisticsScope(RunningStatistics policy,
                                               DeferredStatistics* deferred,
                                               std::vector<Module>& modules)
    : policy_(policy), deferred_(deferred), modules_(modules), former_(current_scope) {
  if (policy_ != RunningStatistics::kUpdate) {
    c10::NoGradGuard no_grad;
    for (Module& module : modules_) {
      if (!module.scratch.defined() || module.scratch.device() != module.counter->device()) {
        module.scratch = at::zeros_like(*module.counter);
      }
      // The value matters to a batch norm without momentum, which divides by it.
      module.scratch.copy_(*module.counter);
    }
    swap_counters();
  }
  current_scope = this;
}

RunningStatisticsScope::~RunningStatisticsScope() {
  current_scope = former_;
  if (policy_ == RunningStatistics::kUpdate) return;
  swap_counters();
  if (policy_ != RunningStatistics::kDefer) return;
  for (Module& module : modules_) {
    // A counter that the forward moved belongs to a module that ran in training mode.
    const bool ran = module.scratch.item<int64_t>() != module.counter->item<int64_t>();
    if (ran) deferred_->count(*module.counter);
  }
}

RunningStatisticsScope* RunningStatisticsScope::current() { return current_scope; }

void RunningStatisticsScope::swap_counters() {
  for (Module& module : modules_) std::swap(*module.counter, module.scratch);
}

std::vector<RunningStatisticsScope::Module> batch_norms_of(torch::nn::Module& module) {
  std::vector<RunningStatisticsScope::Module> found;
  auto visit = [&](torch::nn::Module& m) {
    add_counter<torch::nn::BatchNorm1dImpl>(m, found) ||
        add_counter<torch::nn::BatchNorm2dImpl>(m, found) ||
        add_counter<torch::nn::BatchNorm3dImpl>(m, found);
  };
  visit(module);
  for (const auto& child : module.modules(/*include_self=*/false)) visit(*child);
  return found;
}

void register_batch_norm_kernel(torch::Library& aten) {
  aten.impl("batch_norm", torch::CppFunction(batch_norm));
}

}  // namespace gpipe::internal
