// Loading: checks that refuse a checkpoint of another model, which torch::load takes silently.
#ifndef GPIPE_INTERNAL_MODEL_LOADING_H_
#define GPIPE_INTERNAL_MODEL_LOADING_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {

// Throws c10::ValueError unless `archive` has the children of `module` and no further layers. A
// layer has a number as its key, as in a Sequential. Other keys may belong to the user.
void check_layers_of(torch::serialize::InputArchive& archive, const torch::nn::Module& module);

// A module's parameters and buffers before a load. LibTorch replaces their data by what it reads,
// whatever shape that has.
class StateBeforeLoad {
 public:
  explicit StateBeforeLoad(const torch::nn::Module& module);

  // Throws c10::ValueError that names the tensors that have another shape now.
  void check_shapes() const;

  // Gives all tensors the data that they had before the load.
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
