#include "gpipe/internal/backward/gradient_memory.h"

#include <ATen/SparseTensorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

// Whether anything but its sparse gradient refers to `part`, the gradient's values or indices. If
// nothing else does, the use count is 2: the gradient's own reference, and `part` itself.
bool is_shared_part(const at::Tensor& part) { return part.use_count() > 2 || shares_storage(part); }

// The implementation has the values and indices themselves. _values() would return a new tensor at
// each call, which itself shares the memory.
const at::SparseTensorImpl& sparse_impl(const at::Tensor& sparse) {
  return *static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
}

// Whether anything else refers to the elements of a sparse gradient. They may be a view of a
// gradient that is passed on to another node.
bool values_are_shared(const at::Tensor& sparse) {
  return is_shared_part(sparse_impl(sparse).values());
}

// Whether anything else refers to the elements or to their indices. The indices often have the
// memory of the indices that the caller gave to an embedding.
bool parts_are_shared(const at::Tensor& sparse) {
  return values_are_shared(sparse) || is_shared_part(sparse_impl(sparse).indices());
}

}  // namespace

at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == c10::kSparse ? gradient._values() : gradient;
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor values_a = values_of(a);
  const at::Tensor values_b = values_of(b);
  const c10::StorageImpl* storage = storage_of(values_a);
  return storage == nullptr ? values_a.is_same(values_b) : storage == storage_of(values_b);
}

bool memory_is_shared(const at::Tensor& gradient) {
  if (gradient.defined() && gradient.layout() == c10::kSparse) {
    return values_are_shared(gradient);
  }
  if (!shares_storage(gradient)) return false;
  const bool whole = gradient.is_non_overlapping_and_dense() && !gradient.is_conj() &&
                     !gradient.is_neg() && gradient.nbytes() == gradient.storage().nbytes();
  return !whole || held_by_others({&gradient});
}

bool is_shared(const at::Tensor& gradient) {
  return gradient.use_count() > 1 || memory_is_shared(gradient);
}

bool shared_with_others(c10::ArrayRef<at::Tensor*> gradients) {
  const at::Tensor& first = *gradients.front();
  if (storage_of(first) != nullptr) {
    return held_by_others({const_cast<const at::Tensor**>(gradients.data()), gradients.size()});
  }
  if (gradients.size() > 1 || first.use_count() > 1) return true;
  return first.layout() == c10::kSparse && parts_are_shared(first);
}

void move_away(c10::ArrayRef<at::Tensor*> gradients) {
  c10::NoGradGuard no_grad;
  if (std::all_of(gradients.begin(), gradients.end(),
                  [](const at::Tensor* gradient) { return storage_of(*gradient) != nullptr; })) {
    return move_into_copy(gradients);
  }
  for (at::Tensor* gradient : gradients) *gradient = gradient->clone();
}

void unshare(at::Tensor& gradient) {
  if (!shares_storage(gradient)) return;
  c10::NoGradGuard no_grad;
  gradient = gradient.clone();
}

}  // namespace gpipe::internal
