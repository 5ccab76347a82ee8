#include "gpipe/internal/graphs/graph_memory.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

uintptr_t place_in_line(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % line_bytes(tensor.device());
}

// Whether new memory gets the tensor's layout without further work. New memory begins with a cache
// line.
bool is_simple(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && place_in_line(tensor) == 0;
}

// The tensor without the dimensions along which it repeats one element.
at::Tensor distinct_elements(at::Tensor tensor) {
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    if (tensor.size(d) > 1 && tensor.stride(d) == 0) tensor = tensor.select(d, 0);
  }
  return tensor;
}

}  // namespace

void add_layout(LayoutKey& key, const at::Tensor& tensor) {
  key.push_back(!tensor.defined() ? -1 : tensor.layout() != c10::kStrided ? -2 : tensor.dim());
  if (key.back() < 0) return;
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

void add_place(LayoutKey& key, const at::Tensor& tensor) {
  const bool has_one = tensor.defined() && tensor.layout() == c10::kStrided;
  key.push_back(has_one ? static_cast<int64_t>(place_in_line(tensor)) : -1);
}

bool can_be_filled(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
         distinct_elements(tensor).is_non_overlapping_and_dense();
}

at::Tensor memory_like(const at::Tensor& tensor) {
  if (!is_simple(tensor)) return copy_in_layout(tensor);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
}

void fill_memory(const at::Tensor& memory, const at::Tensor& values) {
  if (values.is_non_overlapping_and_dense()) {
    memory.copy_(values);
  } else {
    distinct_elements(memory).copy_(distinct_elements(values));
  }
}

at::Tensor copy_out(const at::Tensor& tensor) {
  if (!is_simple(tensor)) return copy_in_layout(tensor);
  at::Tensor copy = memory_like(tensor);
  copy.copy_(tensor);
  return copy;
}

at::Tensor alias_to_fill(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

at::Tensor unowned_alias(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::Storage& whole = tensor.storage();
  c10::Storage memory(c10::Storage::use_byte_size_t(), whole.nbytes(),
                      c10::DataPtr(const_cast<void*>(whole.data()), tensor.device()),
                      /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      std::move(memory), c10::DispatchKeySet(tensor.options().computeDispatchKey()),
      tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return alias;
}

}  // namespace gpipe::internal
