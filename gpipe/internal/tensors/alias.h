// Alias: tensors over the same storage. It makes aliases that belong to no graph, and finds out
// which tensors cover the same memory.
#ifndef GPIPE_INTERNAL_TENSORS_ALIAS_H_
#define GPIPE_INTERNAL_TENSORS_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace gpipe::internal {

// Returns an alias as Tensor::detach() does, with the same storage and the same version counter, so
// that an in-place change through either tensor is noticed by autograd and by the pipeline. Unlike
// the result of detach(), autograd does not treat the alias as a view, so a layer may change it in
// place. The function does not go through the dispatcher.
inline at::Tensor detached_alias(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// If `tensor` is an inference tensor, which does not count its changes, returns a tensor over the
// same memory that counts them, from 0 on, and is not an inference tensor. Any other tensor, and
// one without strides, is returned as it is.
at::Tensor counted_alias(const at::Tensor& tensor);

// How often the tensor was changed in place. Constant for a tensor without a version counter.
inline int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

// Identifies the tensor's memory; null if the tensor has no storage.
inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Whether the two tensors have the same memory, shape, strides and dtype, and read it in the same
// way (lazy conjugation and negation).
bool are_same_view(const at::Tensor& a, const at::Tensor& b);

// Whether another tensor object covers the same storage.
inline bool shares_storage(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.storage().use_count() > 1;
}

// The size of a line in bytes. The place in a line where a tensor begins decides which kernel runs,
// and in which order it adds up. On the CPU it is a cache line; on accelerators the largest
// alignment that cuBLASLt asks about.
uintptr_t line_bytes(c10::Device device);

// Whether anything except these tensors, which have one storage, holds that storage. It counts
// references, so `tensors` must point to all tensors that the caller has, not to copies of them.
bool held_by_others(c10::ArrayRef<const at::Tensor*> tensors);

// A copy in memory of its own. It has the same strides, gaps and repeated elements included, and
// the same offset within a line, because otherwise kernels may add up in another order. It belongs
// to no graph.
at::Tensor copy_in_layout(const at::Tensor& tensor);

// The part of its storage that a tensor covers, in elements; empty if the tensor has no elements.
struct MemoryRange {
  int64_t begin = 0;
  int64_t end = 0;
};
MemoryRange memory_range(const at::Tensor& tensor);

// copy_range() copies that part of a tensor's storage, which must contain the tensor, as it lies in
// memory. place_in_copy() finds, for a tensor over the storage, its counterpart in the copy. That
// tensor may have another dtype, but not a smaller one than the copy's, and may be conjugated or
// negated.
at::Tensor copy_range(const at::Tensor& tensor, MemoryRange range);
at::Tensor place_in_copy(const at::Tensor& tensor, const at::Tensor& copy, MemoryRange range);

// Puts these tensors, which have one storage, into a copy of it, as copy_in_layout() does. Tensors
// that shared elements before share them in the copy, too.
void move_into_copy(c10::ArrayRef<at::Tensor*> tensors);

// Whether the two tensors have an element of memory in common. True if that is too hard to tell.
bool may_overlap(const at::Tensor& a, const at::Tensor& b);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_ALIAS_H_
