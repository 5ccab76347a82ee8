#include "gpipe/internal/graphs/graph_leaves.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/node_kinds.h"

namespace gpipe::internal {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

GraphLeaves leaves_of(const edge_list& roots, const NodeRange& own) {
  GraphLeaves result;
  absl::flat_hash_map<const Node*, size_t> seen;  // for a leaf: its index in the result
  std::vector<Node*> open;
  const auto enter = [&](const Edge& edge) {
    if (!edge.is_valid() || !result.reason.empty()) return;
    Node& node = *edge.function;
    const auto* const leaf = dynamic_cast<const AccumulateGrad*>(&node);
    const auto [entry, fresh] = seen.try_emplace(&node, result.leaves.size());
    if (!fresh) {
      if (leaf != nullptr) ++result.leaves[entry->second].uses;
      return;
    }
    if (has_hooks(node) || !node.pre_hooks().empty()) {
      result.reason = leaf != nullptr ? "a parameter has a hook" : node.name() + " has a hook";
    } else if (leaf != nullptr) {
      result.leaves.push_back({edge, leaf->variable, 1});
    } else if (dynamic_cast<const GradientSink*>(&node) == nullptr) {
      if (runs_users_code(node)) {
        result.reason = node.name() + " is a function of yours, whose code each call must run";
      } else if (!own.contains(node)) {
        result.reason = node.name() + " was made outside of the stage";
      }
      open.push_back(&node);
    }
  };
  for (const Edge& root : roots) enter(root);
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    for (const Edge& edge : node->next_edges()) enter(edge);
  }
  return result;
}

}  // namespace gpipe::internal
