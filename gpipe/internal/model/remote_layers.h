// Remote layers: layers of other processes, which have shapes in this process but no memory.
#ifndef GPIPE_INTERNAL_MODEL_REMOTE_LAYERS_H_
#define GPIPE_INTERNAL_MODEL_REMOTE_LAYERS_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>

namespace gpipe::internal {

// Frees the memory of a module's parameters and buffers. They stay the same tensors, with the same
// shapes and types, but on meta. Their gradients are dropped. The tensors in `kept` stay as they
// are.
void move_to_meta(torch::nn::Module& module,
                  const std::unordered_set<const c10::TensorImpl*>& kept = {});

// Gives memory and first values to those parameters and buffers of a layer that are on meta.
// `prefix` and the name within the layer make the tensor's name, which seeds its generator together
// with `seed`.
void materialize(torch::nn::Module& layer, const std::string& prefix, c10::Device device,
                 uint64_t seed,
                 const std::function<void(const std::string& name, at::Tensor& tensor,
                                          at::Generator generator)>& init);

// Gives a meta tensor memory on `device`, with the same sizes and strides and undefined values. It
// stays the same object, with the same autograd metadata.
void give_memory(const at::Tensor& tensor, c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_REMOTE_LAYERS_H_
