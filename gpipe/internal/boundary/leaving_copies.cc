#include "gpipe/internal/boundary/leaving_copies.h"

#include <c10/core/GradMode.h>

#include <algorithm>

namespace gpipe::internal {

bool contains(const WeakStorages& storages, const c10::StorageImpl* storage) {
  return std::any_of(storages.begin(), storages.end(), [&](const auto& entry) {
    const auto alive = entry.lock();
    return alive && alive.get() == storage;
  });
}

namespace {

// Whether the tensor reads its values from its storage by strides.
bool is_plain_memory(const at::Tensor& tensor) {
  return storage_of(tensor) != nullptr && tensor.layout() == c10::kStrided && !tensor.is_nested() &&
         !tensor.is_quantized();
}

}  // namespace

LeavingCopies::LeavingCopies(bool record, const ModelState& model,
                             c10::ArrayRef<const at::Tensor*> leaving,
                             const WeakStorages& staying) {
  for (const at::Tensor* tensor : leaving) add(record, model, *tensor, leaving, staying);
}

at::Tensor LeavingCopies::of(const at::Tensor& tensor) const {
  for (const Copy& copy : copies_) {
    if (copy.whole) {
      if (copy.whole == tensor.unsafeGetTensorImpl()) return copy.memory;
    } else if (copy.storage == storage_of(tensor) && tensor.numel() > 0) {
      return place_in_copy(tensor, copy.memory, copy.range);
    }
  }
  return {};
}

void LeavingCopies::add(bool record, const ModelState& model, const at::Tensor& first,
                        c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& staying) {
  if (!first.defined() || (record && first.requires_grad())) return;
  if (!is_plain_memory(first)) return add_whole(first, leaving);
  const c10::StorageImpl* storage = storage_of(first);
  // If gradients will be asked for, a parameter is not copied, because its version counter shows
  // that it has changed.
  if (first.numel() == 0 || (record && model.owns_as_parameter(storage)) ||
      contains(staying, storage)) {
    return;
  }
  for (const Copy& copy : copies_) {
    if (copy.whole == nullptr && copy.storage == storage) return;
  }
  // If anything besides the tensors that leave holds the memory, it is a layer, the caller or the
  // graph, and the memory is copied.
  c10::SmallVector<const at::Tensor*, 4> over_it;
  // The range is counted in the smallest elements that the memory is read as.
  const at::Tensor* smallest = &first;
  for (const at::Tensor* tensor : leaving) {
    if (storage_of(*tensor) != storage) continue;
    if (record && tensor->requires_grad()) return;  // its graph notices changes
    over_it.push_back(tensor);
    if (tensor->numel() > 0 && tensor->element_size() < smallest->element_size()) smallest = tensor;
  }
  if (!held_by_others(over_it)) return;
  const auto unit = static_cast<int64_t>(smallest->element_size());
  MemoryRange range = memory_range(*smallest);
  for (const at::Tensor* tensor : over_it) {
    if (tensor->numel() == 0) continue;
    const int64_t times = static_cast<int64_t>(tensor->element_size()) / unit;
    const MemoryRange other = memory_range(*tensor);
    range = {std::min(range.begin, other.begin * times), std::max(range.end, other.end * times)};
  }
  copies_.push_back({storage, nullptr, copy_range(*smallest, range), range});
}

void LeavingCopies::add_whole(const at::Tensor& tensor, c10::ArrayRef<const at::Tensor*> leaving) {
  const c10::TensorImpl* const whole = tensor.unsafeGetTensorImpl();
  for (const Copy& copy : copies_) {
    if (copy.whole == whole) return;
  }
  const auto listed = static_cast<size_t>(
      std::count_if(leaving.begin(), leaving.end(),
                    [&](const at::Tensor* other) { return other->is_same(tensor); }));
  if (tensor.use_count() <= listed) return;
  const c10::NoGradGuard no_grad;
  copies_.push_back({nullptr, whole, detached_alias(tensor.clone()), {}});
}

}  // namespace gpipe::internal
