// ReadOnlyInputs: inputs of a cell that its layers must not change in place.
#ifndef GPIPE_INTERNAL_BOUNDARY_READ_ONLY_INPUTS_H_
#define GPIPE_INTERNAL_BOUNDARY_READ_ONLY_INPUTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace gpipe::internal {

// check() throws c10::Error if a layer has changed one of the watched tensors in place.
class ReadOnlyInputs {
 public:
  void watch(const at::Tensor& tensor) {
    if (tensor.is_inference()) return;
    const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
    watched_.push_back({version, version.current_version()});
  }

  // `current_layer()` names the layer for the message.
  template <typename CurrentLayer>
  void check(const CurrentLayer& current_layer) const {
    for (const Watched& watched : watched_) {
      TORCH_CHECK(
          watched.counter.current_version() == watched.version, current_layer(),
          " changed a tensor in place that also went another way: it left its stage as "
          "several values or skips over the same memory, or it is a parameter, a buffer or an "
          "input of all micro-batches (GPipeOptions::shared_inputs). "
          "The gradient that comes back the other way would miss the change. Hand on a "
          "clone(), make the layer not in-place, or move the cut");
    }
  }

 private:
  struct Watched {
    c10::VariableVersion counter;
    uint32_t version;
  };
  c10::SmallVector<Watched, 2> watched_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BOUNDARY_READ_ONLY_INPUTS_H_
