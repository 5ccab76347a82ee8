// ModelState: the parameters, buffers and modes of a model's layers at the time of one call.
#ifndef GPIPE_INTERNAL_MODEL_MODEL_STATE_H_
#define GPIPE_INTERNAL_MODEL_MODEL_STATE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/model/layer.h"

namespace gpipe::internal {

// A ModelState is made anew for every call, because a user may replace modules, freeze parameters
// or change modes between calls. An immutable value type.
class ModelState {
 public:
  struct Parameter {
    std::string name;  // the first name that it has in the model
    at::Tensor tensor;
    // The stages that have the parameter or a copy of it, ascending; the first owns the gradient.
    c10::SmallVector<int64_t, 2> stages;
    bool requires_grad;
    int64_t version;
    const c10::StorageImpl* storage;
  };

  // A parameter that stages on several devices use, and its copies: one on each other device.
  struct Tied {
    at::Tensor parameter;
    std::vector<int64_t> stages;  // the stages that use it, ascending
    std::vector<at::Tensor> copies;
  };

  ModelState() = default;
  explicit ModelState(const std::vector<const std::vector<Layer>*>& partitions,
                      std::vector<Tied> tied = {});

  // The model's parameters, each once.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // The parameter that `tensor` is, or is a copy of; null if no layer has registered it.
  const Parameter* find(const at::Tensor& tensor) const;
  // The index of find() in parameters(), which is the same for every balance; none if not found.
  std::optional<size_t> number_of(const at::Tensor& tensor) const;

  // The tensor that stages on this device use: a copy of the parameter, or the parameter itself.
  const at::Tensor& used_on(c10::Device device, const at::Tensor& parameter) const;

  // Whether the memory belongs to a parameter or buffer.
  bool owns(const c10::StorageImpl* storage) const { return storages_.contains(storage); }

  // Whether the memory belongs to a parameter, which must not change during a call.
  bool owns_as_parameter(const c10::StorageImpl* storage) const {
    const auto found = storages_.find(storage);
    return found != storages_.end() && found->second;
  }

  // Throws c10::Error that names a parameter of `stage` that was changed since this object was
  // made.
  void check_parameters(int64_t stage) const;

  // Throws c10::Error that names a parameter, its requires_grad or a module's mode, if that differs
  // in `now` in a stage with recomputing[stage].
  void check_same(const ModelState& now, const std::vector<bool>& recomputing) const;

 private:
  struct Mode {
    std::shared_ptr<torch::nn::Module> module;
    std::string name;
    int64_t stage;
    bool training;
  };

  std::vector<Parameter> parameters_;
  std::vector<std::vector<size_t>> of_stage_;  // [stage] indices into parameters_
  absl::flat_hash_map<const c10::TensorImpl*, size_t> numbers_;
  absl::flat_hash_map<const c10::StorageImpl*, bool> storages_;  // true: the memory of a parameter
  std::vector<Mode> modes_;
  std::vector<Tied> tied_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_MODEL_STATE_H_
