// ModelGuard: restores a model's state after the model has run.
#ifndef BALANCE_COSTS_MODEL_GUARD_H_
#define BALANCE_COSTS_MODEL_GUARD_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <torch/nn/module.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe::balance {

// Saves the model's state in its constructor, and takes the gradients off the model's tensors. Its
// destructor restores, bit for bit:
// - parameters and buffers: sizes, type, memory, values, requires_grad, and the gradients (the same
//   tensors as before);
// - the mode (training or evaluation) of each module;
// - the CPU's generator of random numbers, and that of `device` if it is a GPU.
// The guard takes memory for a copy of the values. It does not restore what layers register or keep
// in members of their own, nor gradients of tensors that no layer has registered.
//
// Requirements: no module in the model is a null pointer. Nothing else uses the model meanwhile.
class ModelGuard {
 public:
  ModelGuard(torch::nn::Module& model, c10::Device device);
  ~ModelGuard();
  ModelGuard(const ModelGuard&) = delete;
  ModelGuard& operator=(const ModelGuard&) = delete;

 private:
  struct Saved {
    at::Tensor tensor;  // the user's tensor
    at::Tensor alias;   // another tensor over the same memory, with its sizes
    at::Tensor values;  // a copy, if the tensor has no plain memory, e.g. a sparse one
    at::Tensor gradient;
    bool requires_grad;
  };
  // A storage, which several tensors may share, and a copy of its bytes.
  struct Memory {
    c10::Storage storage;
    at::Tensor bytes;
  };
  struct GeneratorState {
    at::Generator generator;
    at::Tensor state;
  };

  void save(const at::Tensor& tensor);
  void save(at::Generator generator);
  void restore();

  std::unordered_set<const void*> known_;  // saved tensors and storages
  std::vector<Saved> tensors_;
  std::vector<Memory> memories_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<GeneratorState> generators_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_MODEL_GUARD_H_
