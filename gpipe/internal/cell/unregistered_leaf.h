// UnregisteredLeaf: the first tensor that got a gradient from a layer, but that no layer has
// registered, such as the weight of a module that a function captured. A warning names it.
#ifndef GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_
#define GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace gpipe::internal {

// Thread-safety: take() and begin_run() are called by one thread at a time, and outside runs; the
// other functions at any time.
class UnregisteredLeaf {
 public:
  void begin_run();
  // Notes, for the present run, that the loss function uses this leaf, so it is the caller's own.
  void excuse(const torch::autograd::Node* accumulator);

  // `layer`: the layer that used the leaf. Only the first call counts.
  void note(const std::string& layer, const torch::autograd::Node* accumulator,
            const at::Tensor& leaf);
  // Whether there was a call, so that callers need not make a text.
  bool noted() const { return state_.load(std::memory_order_relaxed) != State::kNone; }

  // Returns the warning, to one caller only. Empty if there is none, or if it was returned before.
  // `is_registered(leaf)`: whether a layer has registered the leaf by now, e.g. in its first
  // forward.
  template <typename IsRegistered>
  std::string take(const IsRegistered& is_registered) {
    State noted = State::kNoted;
    if (!state_.compare_exchange_strong(noted, State::kTaken)) return "";
    const at::Tensor leaf = std::exchange(leaf_, at::Tensor());
    if (!is_registered(leaf)) return std::move(text_);
    state_.store(State::kNone);
    return "";
  }

 private:
  enum class State { kNone, kWriting, kNoted, kTaken };
  std::atomic<State> state_{State::kNone};
  std::string text_;  // this and leaf_: written by the thread that sets kWriting, read in kNoted
  at::Tensor leaf_;
  std::mutex mutex_;
  std::set<const torch::autograd::Node*> excused_;  // guarded by mutex_
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_
