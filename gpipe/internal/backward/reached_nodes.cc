#include "gpipe/internal/backward/reached_nodes.h"

#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <limits>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/node_kinds.h"

namespace gpipe::internal {

using torch::autograd::Edge;
using torch::autograd::Node;

ReachedNodes::ReachedNodes(WalkVisitor& visitor)
    : visitor_(visitor), anomaly_(torch::autograd::AnomalyMode::is_enabled()) {
  nodes_.reserve(kUsualNodes);
  visitor_.progress = WalkProgress();
}

void ReachedNodes::reach(const Edge& edge, uint64_t from) {
  Node& node = *edge.function;
  const auto [entry, fresh] = nodes_.try_emplace(&node);
  ReachedNode& reached = entry->second;
  ++reached.gradients;
  if (!fresh) return;
  reached.from = from;
  visitor_.progress.node = from;
  found_.push_back(&node);
  const NodeKind kind = kind_of(node);
  if (kind == NodeKind::kSink) return reach_sink(node, reached);
  reached.leaf = kind == NodeKind::kLeaf;
  reached.foreign = !reached.leaf && is_foreign(node);
  if (reached.foreign) visitor_.enter_foreign(node);
  const bool users_code = kind == NodeKind::kOther || has_hooks(node);
  reached.users_code = anomaly_ || users_code;
  if (reached.leaf) return reach_leaf(edge, reached);
  has_writers_ = has_writers_ || users_code || !node.pre_hooks().empty();
}

void ReachedNodes::reach_sink(Node& node, ReachedNode& reached) {
  const auto& known = visitor_.settings.sinks;
  TORCH_CHECK(
      std::find(known.begin(), known.end(), &node) != known.end(),
      "backward reached a tensor of another partition, or of another micro-batch, that came "
      "here by a way that the pipeline does not see (a member of a layer, say, or a global "
      "variable); hand it on as one of the values between layers, stash and pop it "
      "(skip/skippable.h), or detach() it");
  reached.users_code = has_hooks(node);
  has_writers_ = has_writers_ || may_write(node);
}

void ReachedNodes::reach_leaf(const Edge& edge, ReachedNode& reached) {
  Node& node = *edge.function;
  reached.sum = visitor_.sum_of(edge.function, leaf_of(node));
  if (reached.sum != nullptr) return;
  reached.in_place_of_grad = visitor_.in_place_of_grad(edge.function, leaf_of(node));
  replaces_grads_ = replaces_grads_ || reached.in_place_of_grad != nullptr;
  if (!sum_in(node, reached).defined()) fresh_leaves_.push_back(&node);
}

void ReachedNodes::find_rest() {
  while (!found_.empty()) {
    Node* const node = found_.back();
    found_.pop_back();
    if (node->next_edges().empty()) continue;
    const uint64_t from = is_foreign(*node) ? at(node).from : node->sequence_nr();
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid()) reach(edge, from);
    }
  }
  visitor_.progress = {/*found=*/true, WalkProgress::kNone};
}

uint64_t ReachedNodes::next_made_after(const Node& earlier) const {
  uint64_t next = std::numeric_limits<uint64_t>::max();
  for (const auto& [node, reached] : nodes_) {
    const bool later = node->sequence_nr() > earlier.sequence_nr();
    if (later && !reached.foreign) next = std::min(next, node->sequence_nr());
  }
  return next;
}

}  // namespace gpipe::internal
