// Pipelines: the common checks of tests of networks that pass several tensors from layer to layer.
#ifndef MODELS_TESTING_PIPELINES_H_
#define MODELS_TESTING_PIPELINES_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/options.h"

namespace gpipe::models::testing {

// How many tensors leave each layer.
std::vector<size_t> tensors_after(torch::nn::Sequential model, const at::Tensor& input);

// Trains a network for a step, in two micro-batches: as a pipeline with each checkpoint mode, and
// as the plain model. Expects bitwise equal losses, gradients and running statistics. `make` is
// called for each, and LibTorch's generator seeded before it. The loss is cross entropy.
void expect_pipeline_equals_plain_model(const std::function<torch::nn::Sequential()>& make,
                                        const std::vector<int64_t>& balance,
                                        at::IntArrayRef input_shape);

// A model's loss function: it may use the model's parameters.
using MakeLoss = std::function<LossFn(const torch::nn::Sequential& model)>;

// Like expect_pipeline_equals_plain_model(), but with any inputs, target and loss, and in four
// micro-batches. Tries many balances (all of two partitions, some of more, and one layer in each),
// every checkpoint mode, and fill-drain, 1F1B and random tables. Micro-batches count by their rows.
void expect_every_table_equals_plain_model(const std::function<torch::nn::Sequential()>& make,
                                           const Tensors& inputs, const at::Tensor& target,
                                           const MakeLoss& loss);

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_PIPELINES_H_
