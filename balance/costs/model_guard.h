// ModelGuard: puts a model back to what it was before it was run.
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

// Remembers a model when it is made, and takes the gradients off its tensors. When it is destroyed
// it restores, bit for bit:
// - what parameters and buffers are (sizes, type, memory), their values, requires_grad, and their
//   gradients, which are the same tensors as before;
// - the mode (training or evaluation) of each module;
// - the CPU's generator of random numbers, and that of `device` if it is a GPU.
// It takes memory for a copy of the values. It does not undo what layers register or keep in their
// own members, nor gradients of tensors that no layer has registered.
//
// Requirements: no module in it is a null pointer. Nobody else uses the model meanwhile.
class ModelGuard {
 public:
  ModelGuard(torch::nn::Module& model, c10::Device device);
  ~ModelGuard();
  ModelGuard(const ModelGuard&) = delete;
  ModelGuard& operator=(const ModelGuard&) = delete;

 private:
  struct Saved {
    at::Tensor tensor;  // the user's
    at::Tensor alias;   // over its memory, with its sizes
    at::Tensor values;  // a copy, of a tensor that is no plain memory, e.g. a sparse one
    at::Tensor gradient;
    bool requires_grad;
  };
  // The bytes of memory that several tensors may share.
  struct Memory {
    c10::Storage storage;
    at::Tensor bytes;
  };
  struct Draws {
    at::Generator generator;
    at::Tensor state;
  };

  void save(const at::Tensor& tensor);
  void save(at::Generator generator);
  void restore();

  std::unordered_set<const void*> known_;  // tensors and memory that are saved
  std::vector<Saved> tensors_;
  std::vector<Memory> memories_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  std::vector<Draws> draws_;
};

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_MODEL_GUARD_H_
