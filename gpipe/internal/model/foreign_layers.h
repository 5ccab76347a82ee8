// Foreign layers: those of other processes, which have shapes here, and no memory.
#ifndef GPIPE_INTERNAL_MODEL_FOREIGN_LAYERS_H_
#define GPIPE_INTERNAL_MODEL_FOREIGN_LAYERS_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>

namespace gpipe::internal {

// Frees the memory of a module's parameters and buffers: they are the same tensors, with the same
// shapes and types, on meta. Their gradients are dropped. `kept` stay as they are.
void move_to_meta(torch::nn::Module& module,
                  const std::unordered_set<const c10::TensorImpl*>& kept = {});

// Gives the parameters and buffers of a layer that are on meta memory and their first values.
// `prefix` and the name within the layer are the tensor's name, which with `seed` sets its
// generator.
void materialize(torch::nn::Module& layer, const std::string& prefix, c10::Device device,
                 uint64_t seed,
                 const std::function<void(const std::string& name, at::Tensor& tensor,
                                          at::Generator generator)>& init);

// Gives a tensor that is on meta memory on `device`, with the same sizes and strides; what is in it
// is undefined. It stays the same object, with the same marks for autograd.
void give_memory(const at::Tensor& tensor, c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_FOREIGN_LAYERS_H_
