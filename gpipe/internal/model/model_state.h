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

// It is made anew for every call, because a user may replace modules, freeze parameters or change
// modes between calls. An immutable value type.
class ModelState {
 public:
  struct Parameter {
    std::string name;  // in the model, where it occurs first
    at::Tensor tensor;
    // That have it, or a copy, ascending; the first owns the gradient.
    c10::SmallVector<int64_t, 2> stages;
    bool requires_grad;
    int64_t version;
    const c10::StorageImpl* storage;
  };

  // A parameter that stages on several devices use, and its copies, one on each device but its own.
  struct Tied {
    at::Tensor parameter;
    std::vector<int64_t> stages;  // that use it, ascending
    std::vector<at::Tensor> copies;
  };

  ModelState() = default;
  explicit ModelState(const std::vector<const std::vector<Layer>*>& partitions,
                      std::vector<Tied> tied = {});

  // Each parameter once.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Null if no layer has registered it. Of a copy: the parameter.
  const Parameter* find(const at::Tensor& tensor) const;
  // Its place among parameters(), which is the same for every balance; none: as above.
  std::optional<size_t> number_of(const at::Tensor& tensor) const;

  // What stages on this device use in the parameter's place: a copy, or itself.
  const at::Tensor& used_on(c10::Device device, const at::Tensor& parameter) const;

  // Whether the memory belongs to a parameter or buffer.
  bool owns(const c10::StorageImpl* storage) const { return storages_.contains(storage); }

  // Whether it belongs to a parameter, which nobody changes during a call.
  bool owns_as_parameter(const c10::StorageImpl* storage) const {
    const auto found = storages_.find(storage);
    return found != storages_.end() && found->second;
  }

  // Throws c10::Error that names a parameter of stage `stage` if that was changed since.
  void check_parameters(int64_t stage) const;

  // Throws c10::Error that names what differs in `now`, in one of the marked stages: a parameter,
  // its requires_grad, or a module's mode. `recomputing`: [stage] marks.
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
  absl::flat_hash_map<const c10::StorageImpl*, bool> storages_;  // whether of a parameter
  std::vector<Mode> modes_;
  std::vector<Tied> tied_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_MODEL_STATE_H_
