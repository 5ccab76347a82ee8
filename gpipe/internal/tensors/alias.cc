#include "gpipe/internal/tensors/alias.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/conj.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

namespace gpipe::internal {
namespace {

// The tensor without lazy conjugation and negation: the elements as they lie in memory.
at::Tensor as_stored(const at::Tensor& tensor) {
  at::Tensor stored = tensor;
  if (stored.is_conj()) stored = stored.conj();
  if (stored.is_neg()) stored = stored._neg_view();
  return stored;
}

// A tensor that reads the memory of `memory`, from the element `offset` on, as `like` reads its own
// memory.
at::Tensor view_as(const at::Tensor& like, const at::Tensor& memory, int64_t offset) {
  at::Tensor view = at::empty({0}, like.options().requires_grad(false));
  view.set_(memory.storage(), offset, like.sizes(), like.strides());
  // With this counter, a change of the view counts as a change of every tensor over this memory.
  view.unsafeGetTensorImpl()->set_version_counter(memory.unsafeGetTensorImpl()->version_counter());
  if (like.is_conj()) view = view.conj();
  if (like.is_neg()) view = view._neg_view();
  return detached_alias(view);
}

struct Dimension {
  int64_t stride;
  int64_t size;
};
using Box = c10::SmallVector<Dimension, 6>;

// The dimensions with more than one element, the largest stride first.
Box box_of(const at::Tensor& tensor) {
  Box box;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) box.push_back({tensor.stride(d), tensor.size(d)});
  }
  std::sort(box.begin(), box.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  return box;
}

// The offset behind the last element, counted from the first element.
int64_t extent(const Box& box) {
  int64_t last = 0;
  for (const Dimension& dimension : box) last += (dimension.size - 1) * dimension.stride;
  return last + 1;
}

// The strides of both boxes, each once, the largest first. 1 is always among them.
c10::SmallVector<int64_t, 12> strides_of(const Box& a, const Box& b) {
  c10::SmallVector<int64_t, 12> strides;
  for (const Box* box : {&a, &b}) {
    for (const Dimension& dimension : *box) strides.push_back(dimension.stride);
  }
  strides.push_back(1);
  std::sort(strides.begin(), strides.end(), std::greater<>());
  strides.erase(std::unique(strides.begin(), strides.end()), strides.end());
  return strides;
}

struct Interval {
  int64_t begin;
  int64_t end;
};

// The position of a box that starts at `offset`, in coordinates over `strides`. Returns false if
// the box is not a block of a tensor with these strides, because it crosses the end of one of them.
bool coordinates(const Box& box, int64_t offset, const c10::SmallVector<int64_t, 12>& strides,
                 c10::SmallVector<Interval, 12>& result) {
  for (size_t k = 0; k < strides.size(); ++k) {
    if (strides[k] <= 0) return false;
    const int64_t begin = offset / strides[k];
    offset -= begin * strides[k];
    int64_t size = 1;
    for (const Dimension& dimension : box) {
      if (dimension.stride == strides[k]) size *= dimension.size;
    }
    if (k > 0 && (begin + size) * strides[k] > strides[k - 1]) return false;
    result.push_back({begin, begin + size});
  }
  return true;
}

}  // namespace

at::Tensor counted_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_inference()) return tensor;
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() || !tensor.has_storage()) {
    return tensor;
  }
  // A tensor that is made outside of inference mode counts all its changes, even those that are
  // made in that mode.
  const c10::InferenceMode outside(false);
  const c10::NoGradGuard no_grad;
  at::Tensor alias = at::empty({0}, tensor.options());
  alias.set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) alias = alias.conj();
  if (tensor.is_neg()) alias = alias._neg_view();
  return alias;
}

uintptr_t line_bytes(c10::Device device) { return device.is_cpu() ? 64 : 256; }

MemoryRange memory_range(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  return {tensor.storage_offset(), tensor.storage_offset() + extent(box_of(tensor))};
}

at::Tensor copy_range(const at::Tensor& tensor, MemoryRange range) {
  c10::NoGradGuard no_grad;
  const at::Tensor source =
      as_stored(tensor.detach()).as_strided({range.end - range.begin}, {1}, range.begin);
  // The copy has the same offset from the start of a cache line, because kernels treat the elements
  // before the next line in another way.
  const uintptr_t line = line_bytes(tensor.device());
  const auto item = static_cast<uintptr_t>(tensor.element_size());
  const at::Tensor memory = at::empty({source.size(0) + static_cast<int64_t>(line / item)},
                                      tensor.options().requires_grad(false));
  const auto from = reinterpret_cast<uintptr_t>(source.const_data_ptr());
  const auto to = reinterpret_cast<uintptr_t>(memory.const_data_ptr());
  const auto shift = static_cast<int64_t>(((from - to) % line) / item);
  at::Tensor copy = memory.narrow(0, shift, source.size(0));
  copy.copy_(source);
  return copy;
}

at::Tensor place_in_copy(const at::Tensor& tensor, const at::Tensor& copy, MemoryRange range) {
  c10::NoGradGuard no_grad;
  const auto item = static_cast<int64_t>(tensor.element_size());
  const auto unit = static_cast<int64_t>(copy.element_size());
  if (tensor.dtype() != copy.dtype() || tensor.is_conj() || tensor.is_neg()) {
    const int64_t bytes =
        (copy.storage_offset() - range.begin) * unit + tensor.storage_offset() * item;
    // Memory that LibTorch did not allocate may begin at an address that is not aligned for the
    // larger of two types. Then the tensor gets a copy of its own.
    return bytes % item == 0 ? view_as(tensor, copy, bytes / item) : detached_alias(tensor.clone());
  }
  return detached_alias(
      copy.as_strided(tensor.sizes(), tensor.strides(),
                      copy.storage_offset() + tensor.storage_offset() - range.begin));
}

bool are_same_view(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  return storage_of(a) != nullptr && storage_of(a) == storage_of(b) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.dtype() == b.dtype() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

at::Tensor copy_in_layout(const at::Tensor& tensor) {
  c10::NoGradGuard no_grad;
  if (storage_of(tensor) == nullptr || tensor.layout() != c10::kStrided || tensor.numel() == 0) {
    return detached_alias(tensor.clone());
  }
  const MemoryRange range = memory_range(tensor);
  return place_in_copy(tensor, copy_range(tensor, range), range);
}

bool held_by_others(c10::ArrayRef<const at::Tensor*> tensors) {
  c10::SmallVector<const c10::TensorImpl*, 8> known;
  size_t held = 0;
  auto know = [&](const at::TensorBase& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (std::find(known.begin(), known.end(), impl) != known.end()) return;
    known.push_back(impl);
    held += tensor.use_count();
  };
  size_t expected = 0;
  c10::SmallVector<const c10::TensorImpl*, 4> views;
  for (const at::Tensor* tensor : tensors) {
    know(*tensor);
    ++expected;
    if (tensor->is_inference() || !tensor->is_view()) continue;
    // If a view is listed several times, that does not add references to its base.
    const c10::TensorImpl* view = tensor->unsafeGetTensorImpl();
    if (std::find(views.begin(), views.end(), view) != views.end()) continue;
    views.push_back(view);
    know(tensor->_base());
    ++expected;
  }
  return tensors.front()->storage().use_count() > known.size() || held > expected;
}

void move_into_copy(c10::ArrayRef<at::Tensor*> tensors) {
  const auto plain = [&](const at::Tensor* tensor) {
    return tensor->layout() == c10::kStrided && tensor->dtype() == tensors.front()->dtype() &&
           !tensor->is_conj() && !tensor->is_neg();
  };
  if (tensors.size() == 1 || !std::all_of(tensors.begin(), tensors.end(), plain)) {
    for (at::Tensor* tensor : tensors) *tensor = copy_in_layout(*tensor);
    return;
  }
  MemoryRange range = {std::numeric_limits<int64_t>::max(), 0};
  for (const at::Tensor* tensor : tensors) {
    if (tensor->numel() == 0) continue;
    const MemoryRange own = memory_range(*tensor);
    range = {std::min(range.begin, own.begin), std::max(range.end, own.end)};
  }
  at::Tensor copy;
  for (at::Tensor* tensor : tensors) {
    if (tensor->numel() == 0) {
      *tensor = copy_in_layout(*tensor);
      continue;
    }
    if (!copy.defined()) copy = copy_range(*tensor, range);
    *tensor = place_in_copy(*tensor, copy, range);
  }
}

bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || storage_of(a) == nullptr || storage_of(a) != storage_of(b)) {
    return false;
  }
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Box box_a = box_of(a);
  const Box box_b = box_of(b);
  const int64_t offset_a = a.storage_offset();
  const int64_t offset_b = b.storage_offset();
  const auto item_a = static_cast<int64_t>(a.element_size());
  const auto item_b = static_cast<int64_t>(b.element_size());
  if ((offset_a + extent(box_a)) * item_a <= offset_b * item_b ||
      (offset_b + extent(box_b)) * item_b <= offset_a * item_a) {
    return false;
  }
  if (item_a != item_b) return true;  // the code below counts in elements of one size
  // Slices of one tensor are blocks over the same strides. Such blocks are compared in each
  // dimension.
  const auto strides = strides_of(box_a, box_b);
  c10::SmallVector<Interval, 12> where_a;
  c10::SmallVector<Interval, 12> where_b;
  if (!coordinates(box_a, offset_a, strides, where_a) ||
      !coordinates(box_b, offset_b, strides, where_b)) {
    return true;
  }
  for (size_t k = 0; k < strides.size(); ++k) {
    if (where_a[k].end <= where_b[k].begin || where_b[k].end <= where_a[k].begin) return false;
  }
  return true;
}

}  // namespace gpipe::internal
