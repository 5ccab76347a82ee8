// UnregisteredLeaf: the first tensor that got a gradient from a layer, but that no layer has
// registered, such as the weight of a module that a function captured. For a warning.
#ifndef GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_
#define GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <string>

namespace gpipe::internal {

// Thread-safety: note() may be called at any time; take() by one thread at a time.
class UnregisteredLeaf {
 public:
  // `layer`: which used it. Only the first call counts.
  void note(const std::string& layer, const at::Tensor& leaf);
  // Whether there was a call, so that callers need not make a text.
  bool noted() const { return state_.load(std::memory_order_relaxed) != State::kNone; }

  // What is to be said, to one caller; empty: nothing, or it was said.
  std::string take();

 private:
  enum class State { kNone, kWriting, kNoted, kTaken };
  std::atomic<State> state_{State::kNone};
  std::string text_;  // written by who wins kWriting, read in kNoted
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_UNREGISTERED_LEAF_H_
