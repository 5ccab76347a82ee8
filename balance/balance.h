// balance: finds how many layers each partition of a pipeline gets, by measuring the model.
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

// Both functions return the `balance` of GPipeOptions for `partitions` partitions. It is that of
// the cut with the smallest largest partition; partition() (partition.h) decides between equals.
// profiler.h says what `sample` is, how the model is run and restored, and what else is thrown.
//
// Throws c10::ValueError before anything runs: for fewer than one partition, for more partitions
// than layers or than the pieces that keep_together leaves, and for options out of range.
//
// Example:
//   torch::Tensor micro_batch = torch::rand({8, 3, 224, 224});
//   auto balance = gpipe::balance::balance_by_time(4, model, micro_batch);
//   gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(8));

// Balances the time of a micro-batch's forward and backward.
std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const TimeOptions& options = {});
std::vector<int64_t> balance_by_time(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const TimeOptions& options = {});

// Balances the bytes that partitions hold: see profile_sizes().
std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const at::Tensor& sample, const SizeOptions& options = {});
std::vector<int64_t> balance_by_size(int64_t partitions, const torch::nn::Sequential& model,
                                     const Tensors& sample, const SizeOptions& options = {});

}  // namespace gpipe::balance

#endif  // BALANCE_BALANCE_H_
