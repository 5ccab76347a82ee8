// Pipelines: what the tests of networks that hand several tensors from layer to layer share.
#ifndef MODELS_TESTING_PIPELINES_H_
#define MODELS_TESTING_PIPELINES_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gpipe::models::testing {

// How many tensors leave each layer.
std::vector<size_t> tensors_after(torch::nn::Sequential model, const at::Tensor& input);

// Trains a network for a step, in two micro-batches: as a pipeline with each checkpoint mode, and
// as the plain model. Expects bitwise equal losses, gradients and running statistics. `make` is
// called for each, and LibTorch's generator seeded before it. The loss is cross entropy.
void expect_pipeline_equals_plain_model(const std::function<torch::nn::Sequential()>& make,
                                        const std::vector<int64_t>& balance,
                                        at::IntArrayRef input_shape);

}  // namespace gpipe::models::testing

#endif  // MODELS_TESTING_PIPELINES_H_
