#include "balance/balance.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "balance/cut/pieces.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/internal/threads/cpu_threads.h"

namespace gpipe::balance {
namespace {

std::vector<int64_t> cut(const std::vector<double>& costs, int64_t partitions,
                         const PartitionOptions& options) {
  try {
    return partition(costs, partitions, options);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

// Checks the options before the model runs. Layers that are measured together have no cut between
// them.
PartitionOptions checked(int64_t partitions, const torch::nn::Sequential& model,
                         PartitionOptions options) {
  TORCH_CHECK_VALUE(!model.is_empty(), "the model is an empty module holder; give a Sequential");
  TORCH_CHECK_VALUE(!model->is_empty(), "the model has no layers, so there is nothing to balance");
  const std::vector<double> no_costs(model->size(), 0.0);
  (void)cut(no_costs, partitions, options);
  for (const LayerRange& range : joined_layers(internal::pieces_of(model))) {
    options.keep_together.push_back(range);
  }
  (void)cut(no_costs, partitions, options);
  return options;
}

}  // namespace

std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const TimeOptions& options) {
  PartitionOptions how;
  how.slowness = options.slowness();
  how.keep_together = options.keep_together();
  how = checked(partitions, model, std::move(how));
  TimeOptions shared = options;
  if (shared.cpu_threads() == 0) {
    shared.cpu_threads(internal::share_of_cpu_threads(0, partitions));
  }
  std::vector<double> costs;
  for (const LayerTimes& layer : profile_times(model, sample, shared)) {
    costs.push_back((options.recompute() ? 2 : 1) * layer.forward + layer.backward);
  }
  return cut(costs, partitions, how);
}

std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const TimeOptions& options) {
  return balance_by_time(partitions, model, Tensors{sample}, options);
}

std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const SizeOptions& options) {
  PartitionOptions how;
  how.keep_together = options.keep_together();
  how = checked(partitions, model, std::move(how));
  std::vector<double> costs;
  for (const int64_t size : profile_sizes(model, sample, options)) {
    costs.push_back(static_cast<double>(size));
  }
  return cut(costs, partitions, how);
}

std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const SizeOptions& options) {
  return balance_by_size(partitions, model, Tensors{sample}, options);
}

}  // namespace gpipe::balance
