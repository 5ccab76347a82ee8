// detached_alias(): a tensor over the same storage that no longer belongs to any graph.
#ifndef GPIPE_INTERNAL_ALIAS_H_
#define GPIPE_INTERNAL_ALIAS_H_

#include <ATen/core/Tensor.h>

namespace gpipe::internal {

// Like Tensor::detach(): same storage and, so that autograd and we notice a change in place made
// through either, the same version counter. Unlike detach() the result is no view in autograd's
// eyes, hence a layer may work on it in place, and it costs no trip through the dispatcher.
inline at::Tensor detached_alias(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// How often the tensor was changed in place; constant for one that keeps no count.
inline int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_ALIAS_H_
