// hash_fill: fills a network's parameters with numbers that depend only on their positions.
//
// So programs in several languages fill the same network alike, without a file of weights.
#ifndef MODELS_HASH_FILL_H_
#define MODELS_HASH_FILL_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

namespace gpipe::models {

// The number for element `i` of tensor `k`, from -1 to 1.
double hash_value(uint32_t k, uint32_t i);

// Sets element `i`, counted row by row, to `value(i)`, for a tensor of any type.
void overwrite(const at::Tensor& tensor, const std::function<double(int64_t i)>& value);

// Overwrites all parameters except those on meta, such as the layers of another process; `k` is
// their place in named_parameters(). Matrices and kernels are uniform with a variance of one over
// their inputs; vectors are near one ("weight") or near zero.
void hash_fill_parameters(const torch::nn::Module& module);

}  // namespace gpipe::models

#endif  // MODELS_HASH_FILL_H_
