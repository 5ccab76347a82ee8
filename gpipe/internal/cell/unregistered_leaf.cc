#include "gpipe/internal/cell/unregistered_leaf.h"

#include <c10/util/StringUtil.h>

#include <utility>

namespace gpipe::internal {

void UnregisteredLeaf::note(const std::string& layer, const at::Tensor& leaf) {
  State none = State::kNone;
  if (!state_.compare_exchange_strong(none, State::kWriting)) return;
  text_ = c10::str(
      layer, " trains a tensor of shape ", leaf.sizes(),
      " that no layer has registered: of a module that a function captured, say, or of a member "
      "without register_module(). It gets a gradient, but parameters() does not have it, so an "
      "optimizer, to() and what saves the model pass it by. Make it a layer's own "
      "(register_module, register_parameter); if it is meant so, this is all that is said of it");
  state_.store(State::kNoted, std::memory_order_release);
}

std::string UnregisteredLeaf::take() {
  State noted = State::kNoted;
  if (!state_.compare_exchange_strong(noted, State::kTaken)) return "";
  return std::move(text_);
}

}  // namespace gpipe::internal
