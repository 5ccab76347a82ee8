// Balance: how many layers each partition of a pipeline gets, found by measuring the model.
#ifndef BALANCE_BALANCE_H_
#define BALANCE_BALANCE_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/costs/profiler.h"
#include "balance/cut/partition.h"
#include "balance/step/explain.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Both return the `balance` of GPipeOptions for `partitions` partitions: of all cuts the one whose
// largest partition is least, with the ties of partition() (partition.h). What `sample` is, how
// the model is run and left, and what else is thrown: see profiler.h.
//
// Throws c10::ValueError for fewer than one partition, for more than there are layers or pieces
// that keep_together leaves, and for options out of range, before anything runs.
//
// Example:
//   torch::Tensor micro_batch = torch::rand({8, 3, 224, 224});
//   auto balance = gpipe::balance::balance_by_time(4, model, micro_batch);
//   gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(8));

// By the time that partitions take for a micro-batch, forward and backward.
std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const TimeOptions& options = {});
std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const TimeOptions& options = {});

// By the bytes that partitions hold: see profile_sizes().
std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const SizeOptions& options = {});
std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const SizeOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_BALANCE_H_
