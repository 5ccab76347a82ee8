// Graph memory: tensors at fixed addresses, which graphs of kernels read and write again and again.
#ifndef GPIPE_INTERNAL_GRAPHS_GRAPH_MEMORY_H_
#define GPIPE_INTERNAL_GRAPHS_GRAPH_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {

// The properties besides values that a kernel's result may depend on: shape, strides and dtype, and
// where in a cache line (alias.h) the tensor begins, because kernels add up the elements before the
// next line in another way. Two tensors have the same layout if they add the same numbers to the
// key.
using LayoutKey = std::vector<int64_t>;
void add_layout(LayoutKey& key, const at::Tensor& tensor);
void add_place(LayoutKey& key, const at::Tensor& tensor);

// Whether memory of the tensor's layout can be filled with another tensor's values: it is dense, or
// repeats the elements of a dense tensor.
bool can_be_filled(const at::Tensor& tensor);

// Returns memory with the layout of the tensor, which can_be_filled(). Its values are arbitrary.
at::Tensor memory_like(const at::Tensor& tensor);
void fill_memory(const at::Tensor& memory, const at::Tensor& values);

// Returns a copy of the tensor, in the same layout.
at::Tensor copy_out(const at::Tensor& tensor);

// Returns an alias over the same memory with a version counter of its own. So values that autograd
// has saved do not count as changed when the alias is filled. For an undefined tensor, the result
// is undefined, here and below.
at::Tensor alias_to_fill(const at::Tensor& tensor);

// Returns an alias over the same memory that does not own it. The memory belongs to its pool and
// stays there as long as the pool lives. Graphs that are recorded later may use it, too.
at::Tensor unowned_alias(const at::Tensor& tensor);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_GRAPH_MEMORY_H_
