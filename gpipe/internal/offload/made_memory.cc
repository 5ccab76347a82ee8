#include "gpipe/internal/offload/made_memory.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/operator_name.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "gpipe/internal/operators/gathering.h"
#include "gpipe/internal/threads/stage_work.h"

namespace gpipe::internal {
namespace {

thread_local MadeMemory* current = nullptr;

// What sees the operators of which stage, for threads of autograd's engine, which run nodes on its
// behalf. The stage's thread stays in the engine, and so in its Scope, until they have run.
std::mutex mutex;  // guards of_stages(), and not what is in it
std::unordered_map<const StageWork*, MadeMemory*>& of_stages() {
  static auto* const made = new std::unordered_map<const StageWork*, MadeMemory*>();
  return *made;  // threads outlive statics
}

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

// Whether the operator's results have memory of their own.
bool makes_memory(const at::RecordFunction& function) {
  const std::optional<c10::OperatorName> name = function.operator_name();
  if (!name) return false;
  thread_local std::unordered_map<c10::OperatorName, bool> known;  // copying a schema takes long
  const auto found = known.find(*name);
  if (found != known.end()) return found->second;
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  const bool makes = schema && std::none_of(schema->returns().begin(), schema->returns().end(),
                                            [](const c10::Argument& each) {
                                              return each.alias_info() != nullptr;
                                            });
  return known.emplace(*name, makes).first->second;
}

}  // namespace

struct MadeMemoryHooks {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    note(function.inputs(), /*are_made=*/false);
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
    note(function.outputs(), makes_memory(function));
  }
  template <typename Values>
  static void note(const Values& values, bool are_made) {
    if (current == nullptr) {
      if (!are_made) see_on_autograd_thread(values);
      return;
    }
    // What norms gather is added up with what they gather in other cells.
    if (GatheringScope::is_open()) return;
    for (const c10::IValue& value : values) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { current->note(tensor, are_made); });
    }
  }
  // The operators that a custom function or a hook of a stage's backward calls.
  template <typename Values>
  static void see_on_autograd_thread(const Values& values) {
    const StageWork* const work = StageWork::current();
    if (work == nullptr) return;
    MadeMemory* made = nullptr;
    {
      const std::lock_guard lock(mutex);
      const auto found = of_stages().find(work);
      if (found == of_stages().end()) return;
      made = found->second;
    }
    for (const c10::IValue& value : values) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.has_storage()) return;
        made->on_other_(tensor.storage().unsafeGetStorageImpl());
      });
    }
  }
};

MadeMemory::Scope::Scope(MadeMemory& made)
    : former_(std::exchange(current, &made)),
      work_(StageWork::current()),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&MadeMemoryHooks::begin, &MadeMemoryHooks::end)
              .needsInputs(true)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {
  if (work_ == nullptr) return;
  const std::lock_guard lock(mutex);
  former_of_work_ = std::exchange(of_stages()[work_], &made);
}

MadeMemory::Scope::~Scope() {
  at::removeCallback(handle_);
  current = former_;
  if (work_ == nullptr) return;
  const std::lock_guard lock(mutex);
  if (former_of_work_ != nullptr) {
    of_stages()[work_] = former_of_work_;
  } else {
    of_stages().erase(work_);
  }
}

void MadeMemory::note(const at::Tensor& tensor, bool is_made) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  auto found = noted_.find(storage);
  if (found == noted_.end()) {
    const bool made_here = is_made && storage->device() == device_;
    auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>(StoragePtr::reclaim_copy(storage));
    found = noted_.emplace(storage, Noted{std::move(weak), noted_.size(), made_here, {}}).first;
    if (!is_made) on_other_(storage);
  }
  if (!found->second.made_here) return;
  if (tensor.is_inference()) {  // it does not count its changes
    found->second.made_here = false;
    return;
  }
  found->second.changes.push_back(tensor.unsafeGetTensorImpl()->version_counter());
}

void MadeMemory::leave_out(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto found = noted_.find(tensor.storage().unsafeGetStorageImpl());
  if (found != noted_.end()) found->second.made_here = false;
}

std::vector<MadeMemory::Made> MadeMemory::held() const {
  std::vector<Made> made;
  for (const auto& [address, noted] : noted_) {
    if (!noted.made_here) continue;
    StoragePtr storage = noted.storage.lock();
    if (storage) made.push_back({std::move(storage), noted.number, noted.changes});
  }
  std::sort(made.begin(), made.end(),
            [](const Made& a, const Made& b) { return a.number < b.number; });
  return made;
}

}  // namespace gpipe::internal
