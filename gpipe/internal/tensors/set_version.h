// set_version: gives a tensor the version counter that a graph has saved.
#ifndef GPIPE_INTERNAL_TENSORS_SET_VERSION_H_
#define GPIPE_INTERNAL_TENSORS_SET_VERSION_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace gpipe::internal {

// Sets what version_of() returns, for all tensors that share the counter. It does nothing for a
// tensor that does not count its changes.
//
// Requirements: no other thread uses the counter.
inline void set_version(const at::Tensor& tensor, int64_t version) {
  if (tensor.is_inference()) return;
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  counter.set_version(version);
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_SET_VERSION_H_
