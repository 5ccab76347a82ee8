// RemoteTensors: the tensors that layers of other processes have registered, and which layer here
// uses one nevertheless.
//
// A layer may use another layer's parameter without registering it (a captured module, a plain
// member). Only its forward shows that. There the tensor is on meta, or a view of it has the values
// from before the pipeline was made.
#ifndef GPIPE_INTERNAL_MODEL_REMOTE_TENSORS_H_
#define GPIPE_INTERNAL_MODEL_REMOTE_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {

// Thread-safety: const methods at any time, from any thread.
class RemoteTensors {
 public:
  explicit RemoteTensors(int64_t process) : process_(process) {}

  // Adds the tensors of a layer of another process. Called before the layer's memory is freed
  // (move_to_meta).
  void add(const Layer& layer, int64_t process);
  bool empty() const { return all_.empty(); }
  // Whether there is a parameter among the tensors that requires a gradient.
  bool any_trained() const;

 private:
  friend class RemoteUse;

  struct Remote {
    at::Tensor tensor;
    bool is_buffer = false;
    std::string name;   // its name in the model
    std::string layer;  // "layer 0 ('embedding')"
    int64_t process = 0;
    // The storage that the tensor had before its memory was freed. As long as it is held here, no
    // other storage gets its address.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    MemoryRange bytes;
  };

  // Returns the remote tensor that `tensor` is. A remote tensor that is trained is also found by
  // its former memory. Null: it is not remote.
  const Remote* find(const at::Tensor& tensor) const;
  std::string text_of(const Remote& remote, const std::string& user, bool is_loss) const;

  int64_t process_;
  std::vector<Remote> all_;
  std::unordered_map<const c10::TensorImpl*, size_t> by_tensor_;
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> by_storage_;
};

// Watches the operators that one layer, or the loss function, runs on this thread.
class RemoteUse {
 public:
  explicit RemoteUse(const RemoteTensors& tensors);
  ~RemoteUse();
  RemoteUse(const RemoteUse&) = delete;
  RemoteUse& operator=(const RemoteUse&) = delete;

  // Throw c10::ValueError that says which tensor `user` ("layer 5 ('head')") has used of which
  // layer, where both are, and what to do. Reading a shape is allowed. It is an error only if the
  // tensor had old values, if a result is on meta, or if an exception of LibTorch about meta is
  // being handled.
  void check_results(const std::vector<const at::Tensor*>& results, const std::string& user,
                     bool is_loss) const;
  void check_exception(const std::string& user, bool is_loss) const;

 private:
  struct Observer;

  const RemoteTensors& tensors_;
  RemoteUse* former_;
  at::CallbackHandle callback_;
  const RemoteTensors::Remote* found_ = nullptr;
  bool has_old_values_ = false;  // `*found_` has values from before the pipeline was made
};

// Returns what `call`, of a layer or of the loss, gives. Throws if it uses a tensor that a layer of
// another process has registered. `remote`: these tensors; null: nothing is watched. `results_of`:
// the tensors in a result. `user`: the name of the layer or the loss.
template <typename Call, typename ResultsOf, typename User>
auto watched_call(const RemoteTensors* remote, const Call& call, const ResultsOf& results_of,
                  const User& user, bool is_loss = false) {
  if (remote == nullptr) return call();
  const RemoteUse use(*remote);
  std::optional<decltype(call())> result;
  try {
    result.emplace(call());
  } catch (...) {
    use.check_exception(user(), is_loss);
    throw;
  }
  use.check_results(results_of(*result), user(), is_loss);
  return *std::move(result);
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_MODEL_REMOTE_TENSORS_H_
