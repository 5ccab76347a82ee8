#include "gpipe/internal/boundary/leaving_copies.h"

#include <algorithm>

namespace gpipe::internal {

bool contains(const WeakStorages& storages, const c10::StorageImpl* storage) {
  return std::any_of(storages.begin(), storages.end(), [&](const auto& entry) {
    const auto alive = entry.lock();
    return alive && alive.get() == storage;
  });
}

LeavingCopies::LeavingCopies(bool record, const ModelState& model,
                             c10::ArrayRef<const at::Tensor*> leaving,
                             const WeakStorages& staying) {
  for (const at::Tensor* tensor : leaving) add(record, model, *tensor, leaving, staying);
}

at::Tensor LeavingCopies::of(const at::Tensor& tensor) const {
  for (const Copy& copy : copies_) {
    if (copy.storage == storage_of(tensor)) return place_in_copy(tensor, copy.memory, copy.range);
  }
  return {};
}

void LeavingCopies::add(bool record, const ModelState& model, const at::Tensor& first,
                        c10::ArrayRef<const at::Tensor*> leaving, const WeakStorages& staying) {
  const c10::StorageImpl* storage = storage_of(first);
  if (storage == nullptr || first.layout() != c10::kStrided || first.is_nested() ||
      first.numel() == 0 || (record && first.requires_grad()) || model.owns_as_parameter(storage) ||
      contains(staying, storage)) {
    return;
  }
  for (const Copy& copy : copies_) {
    if (copy.storage == storage) return;
  }
  // Whoever holds it besides the tensors that leave is a layer, the caller, or the graph.
  MemoryRange range = memory_range(first);
  c10::SmallVector<const at::Tensor*, 4> over_it;
  for (const at::Tensor* tensor : leaving) {
    if (storage_of(*tensor) != storage) continue;
    if (record && tensor->requires_grad()) return;  // its graph notices changes
    over_it.push_back(tensor);
    if (tensor->numel() == 0) continue;
    const MemoryRange other = memory_range(*tensor);
    range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
  }
  if (held_by_others(over_it)) copies_.push_back({storage, copy_range(first, range), range});
}

}  // namespace gpipe::internal
