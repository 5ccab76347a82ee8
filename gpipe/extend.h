// extend: appends the layers of a Sequential to another, under names that say where they come from.
//
// LibTorch's C++ Sequential cannot hold another one, and its own extend() numbers the layers anew:
// then parameters are found under other names when the model above them grows.
#ifndef GPIPE_EXTEND_H_
#define GPIPE_EXTEND_H_

#include <torch/nn/modules/container/sequential.h>

#include <string>

namespace gpipe {

// Appends the layers of `block`, the modules themselves, to `model`: layer "0" of a block "encoder"
// becomes "encoder_0", and a layer "norm" becomes "encoder_norm".
//
// Throws: c10::ValueError if `name` is empty or has a dot, if a layer of `model` has one of the new
// names already, or if `block` is `model`. Nothing is appended then.
//
// Example:
//   torch::nn::Sequential model, block(torch::nn::Linear(16, 16), torch::nn::ReLU());
//   gpipe::extend(model, "encoder", block);  // its weight: encoder_0.weight
void extend(torch::nn::Sequential& model, const std::string& name,
            const torch::nn::Sequential& block);

}  // namespace gpipe

#endif  // GPIPE_EXTEND_H_
