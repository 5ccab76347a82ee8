#include "gpipe/internal/cell/unregistered_leaf.h"

#include <c10/util/StringUtil.h>

namespace gpipe::internal {

void UnregisteredLeaf::begin_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  excused_.clear();
}

void UnregisteredLeaf::excuse(const torch::autograd::Node* accumulator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  excused_.insert(accumulator);
}

void UnregisteredLeaf::note(const std::string& layer, const torch::autograd::Node* accumulator,
                            const at::Tensor& leaf) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (excused_.count(accumulator) != 0) return;
  }
  State none = State::kNone;
  if (!state_.compare_exchange_strong(none, State::kWriting)) return;
  leaf_ = leaf;
  text_ = c10::str(
      layer, " trains a tensor of shape ", leaf.sizes(),
      " that no layer has registered, e.g. of a module that a function captured, or of a member "
      "without register_module(). It gets a gradient, but parameters() does not have it, so "
      "optimizers, to() and saved models leave it out. Register it in a layer (register_module, "
      "register_parameter); if this is intended, ignore the warning, which comes only once");
  state_.store(State::kNoted, std::memory_order_release);
}

}  // namespace gpipe::internal
