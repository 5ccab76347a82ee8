// MadeMemory: the memory that operators have made on this thread, and what is left of it.
#ifndef GPIPE_INTERNAL_OFFLOAD_MADE_MEMORY_H_
#define GPIPE_INTERNAL_OFFLOAD_MADE_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpipe::internal {

class StageWork;

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

// Notes storages without keeping them alive. A storage was made here if an operator returned it
// whose schema says that its results are no aliases, and no operator had been given it before. So
// parameters, inputs, and what layers have kept from earlier calls are never among them, nor are
// views of these, nor what is inside of tensors without a storage (values of sparse ones, say).
//
// Operators are seen as LibTorch's profiler sees them (RecordFunction), also those inside of other
// operators and of custom functions. What is not seen (where a user has switched the profiler's
// hooks off, where another thread computes, and what norms gather for running statistics) is
// missing, and nothing else.
//
// Thread-safety: none.
class MadeMemory {
 public:
  // Called before an operator is given a storage that was neither made here nor given to one
  // before; on autograd's threads, before it is given any. Several threads may call it at once.
  // What it throws is lost.
  using OnOther = std::function<void(const c10::StorageImpl*)>;

  MadeMemory(c10::Device device, OnOther on_other)
      : device_(device), on_other_(std::move(on_other)) {}

  // While it lives, operators on this thread are seen. Scopes nest: the inner one sees. On threads
  // on which autograd runs a node for this thread's stage, only what operators are given is seen.
  class Scope {
   public:
    explicit Scope(MadeMemory& made);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    MadeMemory* const former_;
    const StageWork* const work_;
    const uint64_t handle_;
    MadeMemory* former_of_work_ = nullptr;
  };

  // The tensor's storage is not among those that held() returns, whatever made it.
  void leave_out(const at::Tensor& tensor);

  struct Made {
    StoragePtr storage;
    // How many storages were seen before it. So it is the same one where the same operators run.
    size_t number;
    // The counters of all its tensors that were seen, because not all views count their changes
    // together. Some are here several times.
    std::vector<c10::VariableVersion> changes;
  };
  // The storages on the device that were made here and are still held by something, in the order in
  // which they were made.
  std::vector<Made> held() const;
  // Forgets all that was noted.
  void forget() { noted_.clear(); }

 private:
  friend struct MadeMemoryHooks;
  struct Noted {
    // It keeps the object, not the memory: so no other storage gets the same address.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    size_t number;
    bool made_here;
    std::vector<c10::VariableVersion> changes;
  };
  void note(const at::Tensor& tensor, bool is_made);

  const c10::Device device_;
  const OnOther on_other_;
  std::unordered_map<const c10::StorageImpl*, Noted> noted_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OFFLOAD_MADE_MEMORY_H_
