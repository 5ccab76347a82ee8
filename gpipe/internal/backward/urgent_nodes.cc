#include "gpipe/internal/backward/urgent_nodes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/backward/node_order.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

// Marks nodes with users' code that may get the same gradient as other nodes. Each node on the way
// to such a node may pass on the gradient that it is given.
void mark_writers(ReachedNodes& nodes, const edge_list& roots) {
  absl::flat_hash_set<const Node*> seen;
  NodeList found;
  auto reach = [&](const edge_list& edges) {
    for (const Edge& edge : edges) {
      if (!edge.is_valid()) continue;
      Node* node = edge.function.get();
      ReachedNode& reached = nodes.at(node);
      if (reached.leaf || !seen.insert(node).second) continue;
      const bool writer = may_write(*node);
      reached.urgent = reached.urgent || writer;
      if (writer || !computes_anew(*node)) found.push_back(node);
    }
  };
  reach(roots);
  while (!found.empty()) {
    Node* node = found.back();
    found.pop_back();
    reach(node->next_edges());
  }
}

}  // namespace

void mark_urgent(ReachedNodes& nodes, const edge_list& roots) {
  std::vector<std::pair<NodeOrder, Node*>> others;  // sorted so that one pass usually is enough
  bool any = false;
  nodes.for_each([&](Node& node, ReachedNode& reached) {
    if (kind_of(node) == NodeKind::kSink || reached.sum != nullptr) {
      reached.urgent = any = true;
    } else if (!reached.leaf) {
      others.emplace_back(NodeOrder{reached.foreign, node.sequence_nr()}, &node);
    }
  });
  if (any && nodes.has_writers()) mark_writers(nodes, roots);
  std::sort(others.begin(), others.end(),
            [](const auto& a, const auto& b) { return runs_before(b.first, a.first); });
  for (bool again = true; again;) {
    again = false;
    for (const auto& entry : others) {
      ReachedNode& reached = nodes.at(entry.second);
      if (reached.urgent) continue;
      const edge_list& edges = entry.second->next_edges();
      reached.urgent = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
        return edge.is_valid() && nodes.at(edge).urgent;
      });
      again = again || reached.urgent;
    }
  }
}

edge_list not_urgent(ReachedNodes& nodes, const edge_list& edges) {
  edge_list rest;
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].is_valid() || nodes.at(edges[i]).urgent) continue;
    rest.resize(edges.size());
    rest[i] = edges[i];
  }
  return rest;
}

}  // namespace gpipe::internal
