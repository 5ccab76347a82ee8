#include "gpipe/internal/offload/made_memory.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace gpipe::internal {
namespace {

thread_local MadeMemory* current = nullptr;

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) for_each_tensor(each, visit);
  }
}

}  // namespace

struct MadeMemoryHooks {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    note(function.inputs(), /*results=*/false);
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
    note(function.outputs(), /*results=*/true);
  }
  template <typename Values>
  static void note(const Values& values, bool results) {
    if (current == nullptr) return;
    for (const c10::IValue& value : values) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { current->note(tensor, results); });
    }
  }
};

MadeMemory::Scope::Scope(MadeMemory& made)
    : former_(std::exchange(current, &made)),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&MadeMemoryHooks::begin, &MadeMemoryHooks::end)
              .needsInputs(true)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {}

MadeMemory::Scope::~Scope() {
  at::removeCallback(handle_);
  current = former_;
}

void MadeMemory::note(const at::Tensor& tensor, bool result) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (noted_.count(storage) > 0) return;
  const bool made_here = result && storage->device() == device_;
  noted_.emplace(storage,
                 Noted{c10::weak_intrusive_ptr<c10::StorageImpl>(StoragePtr::reclaim_copy(storage)),
                       noted_.size(), made_here});
}

std::vector<StoragePtr> MadeMemory::alive() const {
  std::vector<std::pair<size_t, StoragePtr>> found;
  for (const auto& [address, noted] : noted_) {
    if (!noted.made_here) continue;
    if (StoragePtr storage = noted.storage.lock()) found.push_back({noted.number, storage});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<StoragePtr> storages;
  for (auto& each : found) storages.push_back(std::move(each.second));
  return storages;
}

}  // namespace gpipe::internal
