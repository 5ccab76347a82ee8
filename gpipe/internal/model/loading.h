// Loading: what torch::load would take silently, although it is of another model.
#ifndef GPIPE_INTERNAL_MODEL_LOADING_H_
#define GPIPE_INTERNAL_MODEL_LOADING_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {

// Throws c10::ValueError unless `archive` has the children of `module`, and no further layers: keys
// that are numbers, as those of a Sequential. Other keys may belong to the user.
void check_layers_of(torch::serialize::InputArchive& archive, const torch::nn::Module& module);

// A module's parameters and buffers. LibTorch replaces their data by what it reads, whatever its
// shape.
class StateBeforeLoad {
 public:
  explicit StateBeforeLoad(const torch::nn::Module& module);

  // Throws c10::ValueError that names those that have another shape now.
  void check_shapes() const;

  // Gives them their former data.
  void restore() const;

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    at::Tensor data;
  };
  std::vector<Entry> entries_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_LOADING_H_
