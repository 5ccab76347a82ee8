#include "gpipe/internal/backward/split_backward.h"

#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gpipe/internal/backward/gradient_memory.h"
#include "gpipe/internal/backward/held_gradients.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/backward/node_runner.h"
#include "gpipe/internal/backward/urgent_nodes.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Runs the urgent nodes (urgent_nodes.h), and holds the gradients that arrive at the other nodes.
class InputHalf : public NodeRunner<InputHalf> {
 public:
  InputHalf(WalkVisitor& visitor, HeldGradients& held) : NodeRunner(visitor), held_(held) {}

  void run(const edge_list& roots, variable_list& gradients) {
    find(roots);
    mark_urgent(nodes(), roots);
    nodes().for_each([this](Node& node, ReachedNode& reached) {
      if (reached.urgent || reached.leaf || !reached.users_code) return;
      held_.next_made.emplace(&node, nodes().next_made_after(node));
    });
    NodeRunner::run(roots, gradients);
    held_.take_possession();
  }

  void hold(const edge_list& edges, variable_list& gradients, const ReadyNode* from) {
    edge_list rest = not_urgent(nodes(), edges);
    if (rest.empty()) return;
    variable_list waiting(gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (rest[i].is_valid()) waiting[i] = std::move(gradients[i]);
    }
    held_.entries.push_back({order_of_rest(from), nullptr, std::move(rest), std::move(waiting)});
  }

  bool holds(const ReachedNode& reached) const { return !reached.urgent; }

  void before_node(const ReadyNode& ready, const variable_list& inputs) {
    if (nodes().has_writers() && may_write(*ready.node)) keep_from_writer(ready.order, inputs);
  }

  std::optional<edge_list> edges_now(const ReadyNode& ready, const variable_list& inputs) {
    Node& node = *ready.node;
    if (ready.users_code || !node.pre_hooks().empty() || !is_product(node)) return std::nullopt;
    edge_list rest = not_urgent(nodes(), node.next_edges());
    if (rest.empty()) return std::nullopt;
    edge_list edges = node.next_edges();
    for (size_t i = 0; i < edges.size(); ++i) {
      if (rest[i].is_valid()) edges[i] = Edge();
    }
    held_.entries.push_back({order_of_rest(&ready), node.getptr(), std::move(rest), inputs});
    return edges;
  }

 private:
  // The part of the second half that the whole backward would have done before a certain node: the
  // nodes that have run, and the number of gradients that have arrived at each node and each input.
  struct Arrived {
    absl::flat_hash_set<const Node*> run;
    absl::flat_hash_map<const Node*, int> gradients;
    absl::flat_hash_map<std::pair<const Node*, uint32_t>, int> terms;

    bool waits_alone(const Edge& edge) const {
      return !run.contains(edge.function.get()) &&
             terms.at({edge.function.get(), edge.input_nr}) == 1;
    }
  };

  // The place, in the second half, of the gradients that a node leaves to that half.
  std::optional<NodeOrder> order_of_rest(const ReadyNode* node) const {
    if (node == nullptr) return std::nullopt;
    return NodeOrder{node->order.foreign, node->reached, held_.entries.size(),
                     node->order.sequence_nr};
  }

  // Called before users' code gets these gradients. In the whole backward, a gradient in the same
  // memory shows what users' code writes only if it still waits alone in its buffer. Otherwise it
  // has been used before, or added to another gradient. So a held gradient that would not wait
  // alone gets other memory here.
  void keep_from_writer(const NodeOrder& writer, const variable_list& inputs) {
    c10::SmallVector<at::Tensor*, 16> used;
    std::optional<Arrived> arrived;
    for (HeldBack& entry : held_.entries) {
      for (size_t i = 0; i < entry.gradients.size(); ++i) {
        at::Tensor& gradient = entry.gradients[i];
        if (!gradient.defined()) continue;
        const bool given = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
          return input.defined() && share_memory(gradient, input);
        });
        if (!given) continue;
        if (!arrived) arrived = arrived_before(writer);
        if (entry.product == nullptr && arrived->waits_alone(entry.edges[i])) continue;
        used.push_back(&gradient);
      }
    }
    for_each_memory(std::move(used), move_away);
  }

  Arrived arrived_before(const NodeOrder& order) {
    Arrived result;
    NodeList found;
    auto arrive = [&](const edge_list& edges) {
      for (const Edge& edge : edges) {
        if (!edge.is_valid()) continue;
        Node* node = edge.function.get();
        const ReachedNode& reached = nodes().at(node);
        ++result.terms[{node, edge.input_nr}];
        if (++result.gradients[node] < reached.gradients) continue;
        const uint64_t number = node->sequence_nr();
        if (!reached.leaf && !runs_before({reached.foreign, number, 0, number}, order)) continue;
        result.run.insert(node);
        found.push_back(node);
      }
    };
    for (const HeldBack& entry : held_.entries) arrive(entry.edges);
    while (!found.empty()) {
      Node* node = found.back();
      found.pop_back();
      arrive(node->next_edges());
    }
    return result;
  }

  HeldGradients& held_;
};

// Continues with the held gradients, in the order of the whole backward.
class WeightHalf : public NodeRunner<WeightHalf> {
 public:
  WeightHalf(WalkVisitor& visitor, HeldGradients& held) : NodeRunner(visitor), held_(held) {}

  void run() {
    find_behind_held();
    c10::AutoGradMode no_grad(false);
    held_.check();
    for (HeldBack& entry : held_.entries) {
      if (!entry.order) {
        deliver(entry.edges, entry.gradients, nullptr);
      } else {
        ReadyNode ready;
        ready.order = *entry.order;
        ready.reached = entry.order->number;
        ready.held = true;
        push(std::move(ready));
      }
    }
    run_ready();
  }

  // All held gradients are ready at once. So `number` decides: it tells when the whole backward
  // would have had each node ready.
  NodeOrder order_of(const Node& node, const ReachedNode& reached, const ReadyNode* from,
                     uint64_t number) const {
    const uint64_t own = node.sequence_nr();
    return {reached.foreign, reached.leaf ? own : number,
            from != nullptr ? from->order.position : 0, own};
  }

  void run_one(ReadyNode ready) {
    if (!ready.held) return NodeRunner::run_one(std::move(ready));
    HeldBack& entry = held_.entries[ready.order.position];
    if (entry.product == nullptr) return deliver(entry.edges, entry.gradients, &ready);
    const NodePtr node = std::move(entry.product);
    EdgesScope rest(*node, entry.edges);
    ready.node = node.get();
    ready.held = false;
    evaluate(ready, std::move(entry.gradients));
  }

  uint64_t next_made(const Node& node) const {
    const auto known = held_.next_made.find(&node);
    return known == held_.next_made.end() ? nodes().next_made_after(node) : known->second;
  }

 private:
  void find_behind_held() {
    for (const HeldBack& entry : held_.entries) {
      const bool own = entry.order && !entry.order->foreign;
      for (const Edge& edge : entry.edges) {
        if (edge.is_valid()) {
          nodes().reach(edge, own ? entry.order->sequence_nr : WalkProgress::kNone);
        }
      }
    }
    nodes().find_rest();
  }

  HeldGradients& held_;
};

}  // namespace

WeightBackward::WeightBackward() = default;
WeightBackward::~WeightBackward() = default;
WeightBackward::WeightBackward(WeightBackward&&) noexcept = default;
WeightBackward& WeightBackward::operator=(WeightBackward&&) noexcept = default;

void WeightBackward::run(WalkVisitor& visitor) {
  const std::unique_ptr<HeldGradients> held = std::move(held_);
  if (held == nullptr) return;
  WeightHalf(visitor, *held).run();
}

WeightBackward run_input_backward(const edge_list& roots, variable_list& gradients,
                                  WalkVisitor& visitor) {
  WeightBackward rest;
  if (roots.empty()) return rest;
  rest.held_ = std::make_unique<HeldGradients>();
  InputHalf(visitor, *rest.held_).run(roots, gradients);
  return rest;
}

}  // namespace gpipe::internal
