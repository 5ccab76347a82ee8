#include "gpipe/internal/backward/foreign_nodes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <type_traits>

namespace gpipe::internal {

namespace {

// A weak reference to the node, which must have an owner. This is a template, because each version
// of LibTorch has only one of the two ways to make such a reference.
template <typename Node, typename Pointer = NodePtrTo<Node>>
WeakNodePtr weak_from(const Node& constant) {
  auto& node = const_cast<Node&>(constant);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return node.weak_from_this();
  } else {
    return WeakNodePtr(Pointer::reclaim_copy(&node));
  }
}

}  // namespace

void ForeignNodes::enter(const torch::autograd::Node& node, int64_t stage) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = stages_.try_emplace(&node, Entry{weak_from(node), stage}).first;
  Entry& known = entry->second;
  if (known.node.expired()) known = {weak_from(node), stage};
  TORCH_CHECK(known.stage == stage, "stages ", std::min(stage, known.stage), " and ",
              std::max(stage, known.stage),
              " both use a tensor that was computed outside the pipeline (its graph has ",
              node.name(),
              "), and their backwards would run through its graph at the same time; compute it "
              "inside the layers, give it to the model as an input, or detach() it");
}

}  // namespace gpipe::internal
