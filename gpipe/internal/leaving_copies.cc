#include "gpipe/internal/leaving_copies.h"

#include <algorithm>

namespace gpipe::internal {

bool contains(const WeakStorages& storages, const c10::StorageImpl* storage) {
  return std::any_of(storages.begin(), storages.end(), [&](const auto& entry) {
    const auto alive = entry.lock();
    return alive && alive.get() == storage;
  });
}

LeavingCopies::LeavingCopies(bool record, const ModelState& model,
                             c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& shared) {
  for (const at::Tensor* tensor : leaving) add(record, model, *tensor, leaving, shared);
}

at::Tensor LeavingCopies::of(const at::Tensor& tensor) const {
  for (const Copy& copy : copies_) {
    if (copy.storage == storage_of(tensor)) return place_in_copy(tensor, copy.memory, copy.range);
  }
  return {};
}

void LeavingCopies::add(bool record, const ModelState& model, const at::Tensor& first,
                        c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& shared) {
  const c10::StorageImpl* storage = storage_of(first);
  if (storage == nullptr || first.layout() != c10::kStrided || first.is_nested() ||
      first.numel() == 0 || (record && first.requires_grad()) || model.owns_as_parameter(storage) ||
      contains(shared, storage)) {
    return;
  }
  for (const Copy& copy : copies_) {
    if (copy.storage == storage) return;
  }
  // Counts the references of the tensors over this memory that leave, and of their bases. Any
  // further reference is held by a layer, the caller, or the graph.
  MemoryRange range = memory_range(first);
  c10::SmallVector<const c10::TensorImpl*, 8> known;
  size_t held = 0;
  auto know = [&](const at::TensorBase& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (std::find(known.begin(), known.end(), impl) != known.end()) return;
    known.push_back(impl);
    held += tensor.use_count();
  };
  size_t expected = 0;
  for (const at::Tensor* tensor : leaving) {
    if (storage_of(*tensor) != storage) continue;
    if (record && tensor->requires_grad()) return;  // its graph notices changes
    know(*tensor);
    ++expected;
    if (!tensor->is_inference() && tensor->is_view()) {
      know(tensor->_base());
      ++expected;  // the view's reference
    }
    if (tensor->numel() == 0) continue;
    const MemoryRange other = memory_range(*tensor);
    range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
  }
  const bool alone = first.storage().use_count() <= known.size() && held <= expected;
  if (!alone) copies_.push_back({storage, copy_range(first, range), range});
}

}  // namespace gpipe::internal
