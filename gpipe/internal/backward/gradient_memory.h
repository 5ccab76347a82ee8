// Gradient memory: who else has the memory of a gradient, and how it gets memory of its own.
#ifndef GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_
#define GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

namespace gpipe::internal {

// Where a gradient's values are: for a sparse one, those of its elements.
at::Tensor values_of(const at::Tensor& gradient);

// Whether the two have one memory.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

// Whether anybody else has the gradient's memory. The tensor that it is a view of does not count if
// nobody else has that and the view is all of it: the gradient of a linear layer's weight is a
// transposed product. A part, repeated elements or a lazy conjugate would stay what they are. Of a
// sparse gradient the values count, which nobody may change, and not the indices, which nobody
// does.
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

// Whether anybody but these gradients, which share memory, has it.
bool shared_with_others(c10::ArrayRef<at::Tensor*> gradients);

// Gives these gradients, which share memory, other memory, which they share.
void move_away(c10::ArrayRef<at::Tensor*> gradients);

// Gives a leaf's gradient memory of its own. What a hook returned, or what the engine left, may be
// a view of another gradient.
void unshare(at::Tensor& gradient);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GRADIENT_MEMORY_H_
