// Gradient memory: whether other tensors have a gradient's memory, and how it gets memory of its
// own.
#ifndef GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_
#define GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

namespace gpipe::internal {

// The tensor that has a gradient's values: for a sparse gradient its elements, otherwise itself.
at::Tensor values_of(const at::Tensor& gradient);

// Whether the values of both are in the same memory.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

// Whether other tensors have the gradient's memory. The base of a view does not count if nothing
// else refers to it and the view covers all of it: the gradient of a linear layer's weight is such
// a view, a transposed product. A view counts if it is a part of its base, repeats elements or is a
// lazy conjugate: without a copy, .grad would keep that form. In a sparse gradient only the values
// count, because nothing changes its indices.
bool memory_is_shared(const at::Tensor& gradient);

// Whether there is another reference to the gradient or to its memory.
bool is_shared(const at::Tensor& gradient);

// Calls visit() for each group of gradients that share memory with each other.
template <typename Visit>
void for_each_memory(c10::SmallVector<at::Tensor*, 16> gradients, const Visit& visit) {
  while (!gradients.empty()) {
    at::Tensor* const first = gradients.front();
    const auto rest = std::stable_partition(
        gradients.begin(), gradients.end(),
        [&](const at::Tensor* other) { return share_memory(*first, *other); });
    visit(c10::ArrayRef<at::Tensor*>(gradients.begin(), rest));
    gradients.erase(gradients.begin(), rest);
  }
}

// Whether anything besides these gradients, which share one memory, refers to it.
bool shared_with_others(c10::ArrayRef<at::Tensor*> gradients);

// Copies these gradients, which share one memory, into new memory. If each has a storage, they
// share the new memory, too.
void move_away(c10::ArrayRef<at::Tensor*> gradients);

// Gives a leaf's gradient memory of its own. The result of a hook, or what the engine left in
// .grad, may be a view of another gradient.
void unshare(at::Tensor& gradient);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_
