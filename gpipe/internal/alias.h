// Tensors over the same storage: aliases that belong to no graph, and what else covers a memory.
#ifndef GPIPE_INTERNAL_ALIAS_H_
#define GPIPE_INTERNAL_ALIAS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

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

// Identifies the tensor's memory; null where it has none of the usual kind.
inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Whether the two are one tensor as far as memory is concerned: elements, order, dtype.
bool are_same_view(const at::Tensor& a, const at::Tensor& b);

// Whether some other tensor object covers the same storage.
inline bool shares_storage(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().use_count() > 1;
}

// A copy in memory of its own with the same strides, gaps and repeated elements included, and the
// same place within a cache line: kernels may add up in another order over others. Belongs to no
// graph.
at::Tensor copy_in_layout(const at::Tensor& tensor);

// Where in its storage a tensor lies, in elements; empty if it has none.
struct MemoryRange {
  int64_t begin = 0;
  int64_t end = 0;
};
MemoryRange memory_range(const at::Tensor& tensor);

// A copy of that part of the tensor's storage, which must hold the tensor, and then the place of a
// tensor over the storage in the copy.
at::Tensor copy_range(const at::Tensor& tensor, MemoryRange range);
at::Tensor place_in_copy(const at::Tensor& tensor, const at::Tensor& copy, MemoryRange range);

// Whether the two tensors have an element of memory in common. True where that is too hard to tell.
bool may_overlap(const at::Tensor& a, const at::Tensor& b);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_ALIAS_H_
