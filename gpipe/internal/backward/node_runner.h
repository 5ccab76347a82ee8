// NodeRunner: runs the nodes that a walk has found, in the order of autograd's engine.
//
// Types that derive from it (local_backward.cc, split_backward.cc) define in what a whole backward
// and its halves differ. The type that runs is known at compile time, so a whole backward pays
// nothing for the halves.
#ifndef GPIPE_INTERNAL_BACKWARD_NODE_RUNNER_H_
#define GPIPE_INTERNAL_BACKWARD_NODE_RUNNER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/engine_node.h"
#include "gpipe/internal/backward/gradient_memory.h"
#include "gpipe/internal/backward/gradient_sums.h"
#include "gpipe/internal/backward/in_place_of_grad.h"
#include "gpipe/internal/backward/node_order.h"
#include "gpipe/internal/backward/reached_nodes.h"
#include "gpipe/internal/backward/run_node.h"
#include "gpipe/internal/backward/walk_number.h"
#include "gpipe/internal/backward/walk_visitor.h"
#include "gpipe/internal/tensors/finite.h"

namespace gpipe::internal {

// A node at which all its gradients have arrived.
struct ReadyNode {
  NodeOrder order;
  // The lowest sequence number on the way to the node, which decides when the engine comes to it.
  // Usually that is the node's own number. But the graph of a view that was changed in place is
  // made anew, later than the nodes in front of it.
  uint64_t reached = 0;
  torch::autograd::Node* node = nullptr;
  bool leaf = false;
  bool users_code = false;
  bool held = false;  // this is not a node, but entry `order.position` of HeldGradients
  torch::autograd::variable_list inputs;
};

// `Half` derives from this class and replaces the functions in which it differs.
//
// Thread-safety: none.
template <typename Half>
class NodeRunner {
 public:
  using Edge = torch::autograd::Edge;
  using edge_list = torch::autograd::edge_list;
  using Node = torch::autograd::Node;
  using variable_list = torch::autograd::variable_list;

  // The visitor must outlive this object.
  explicit NodeRunner(WalkVisitor& visitor) : visitor_(visitor), nodes_(visitor) {
    ready_.reserve(kUsualNodes / 2);
  }
  NodeRunner(const NodeRunner&) = delete;
  NodeRunner& operator=(const NodeRunner&) = delete;

  // Counts how many gradients each node waits for.
  void find(const edge_list& roots) {
    for (const Edge& root : roots) nodes_.reach(root);
    nodes_.find_rest();
  }

  void run(const edge_list& roots, variable_list& gradients) {
    c10::AutoGradMode no_grad(false);
    validate_gradients(roots, gradients, nullptr);
    deliver(roots, gradients, nullptr);
    run_ready();
  }

  // --- Functions that a half may replace. `from`: the node that has run; null for the roots.

  // Called before gradients go along these edges. Takes the gradients that must wait for the second
  // half.
  void hold(const edge_list& /*edges*/, variable_list& /*gradients*/, const ReadyNode* /*from*/) {}
  // Whether hold() has taken the gradients for the node.
  bool holds(const ReachedNode& /*reached*/) const { return false; }
  // The order of a node whose last gradient comes from `from`. `from` is null, or foreign exactly
  // if the node is foreign.
  NodeOrder order_of(const Node& node, const ReachedNode& reached, const ReadyNode* /*from*/,
                     uint64_t /*number*/) const {
    return {reached.foreign, node.sequence_nr(), 0, node.sequence_nr()};
  }
  void run_one(ReadyNode ready) { evaluate(ready, std::move(ready.inputs)); }
  // Called before a node gets these inputs.
  void before_node(const ReadyNode& /*ready*/, const variable_list& /*inputs*/) {}
  // The edges for which the node computes now; it will run again for the others. nullopt: all
  // edges.
  std::optional<edge_list> edges_now(const ReadyNode& /*ready*/, const variable_list& /*inputs*/) {
    return std::nullopt;
  }
  // What WalkVisitor::before_users_code() gets as `next`.
  uint64_t next_made(const Node& node) const { return nodes_.next_made_after(node); }

 protected:
  void deliver(const edge_list& edges, variable_list& gradients, const ReadyNode* from) {
    half().hold(edges, gradients, from);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      Node* node = edges[i].function.get();
      ReachedNode& reached = nodes_.at(node);
      if (half().holds(reached)) continue;
      if (reached.sum != nullptr) {
        if (reached.sum != WalkVisitor::discarded()) {
          add_to_sum(*reached.sum, std::move(gradients[i]), node);
        }
        continue;
      }
      if (!reached.inputs && reached.gradients == 1 && node->num_inputs() == 1) {
        variable_list only(1);
        only[0] = std::move(gradients[i]);
        make_ready(node, reached, std::move(only), from);
        continue;
      }
      if (!reached.inputs) reached.inputs.emplace(node->num_inputs());
      add_to_inputs(*reached.inputs, edges[i].input_nr, std::move(gradients[i]), node);
      if (--reached.gradients > 0) continue;
      make_ready(node, reached, std::move(reached.inputs->buffer), from);
      reached.inputs.reset();
    }
  }

  void push(ReadyNode ready) {
    ready_.push_back(std::move(ready));
    std::push_heap(ready_.begin(), ready_.end(), runs_later);
  }

  void run_ready() {
    const WalkScope scope;
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), runs_later);
      ReadyNode next = std::move(ready_.back());
      ready_.pop_back();
      half().run_one(std::move(next));
    }
    for (Node* leaf : nodes_.fresh_leaves()) {
      unshare(ReachedNodes::sum_in(*leaf, nodes_.at(leaf)));
    }
  }

  void evaluate(const ReadyNode& ready, variable_list inputs) {
    Node& node = *ready.node;
    std::optional<InPlaceOfGradScope> in_place_of_grad;
    if (ready.leaf) {
      before_leaf(ready, inputs[0], in_place_of_grad);
    } else {
      visitor_.progress.node = node.sequence_nr();  // accumulators have no place in the order
    }
    half().before_node(ready, inputs);
    std::optional<EdgesScope> scope;
    std::optional<edge_list> edges = half().edges_now(ready, inputs);
    if (edges) scope.emplace(node, std::move(*edges));
    if (ready.users_code) visitor_.before_users_code(node, half().next_made(node));
    variable_list outputs =
        run_node(node, std::move(inputs), ready.users_code, visitor_.settings.keep_graph || scope);
    if (visitor_.settings.check_finite) {
      for (const at::Tensor& output : outputs) check_finite(output, "a gradient of " + node.name());
    }
    deliver(node.next_edges(), outputs, &ready);
  }

  ReachedNodes& nodes() { return nodes_; }
  const ReachedNodes& nodes() const { return nodes_; }

 private:
  Half& half() { return static_cast<Half&>(*this); }

  static bool runs_later(const ReadyNode& a, const ReadyNode& b) {
    return runs_before(b.order, a.order);
  }

  // Copies a leaf's gradient if it would share its memory with other tensors as .grad, or if a hook
  // could write into their memory. `scope` puts another tensor in the place of .grad, if one was
  // chosen.
  void before_leaf(const ReadyNode& ready, at::Tensor& gradient,
                   std::optional<InPlaceOfGradScope>& scope) {
    at::Tensor* const sum =
        nodes_.replaces_grads() ? nodes_.at(ready.node).in_place_of_grad : nullptr;
    const at::Tensor& leaf = leaf_of(*ready.node);
    const bool first = sum != nullptr ? !sum->defined() : !leaf.grad().defined();
    if ((first && memory_is_shared(gradient)) || (ready.users_code && is_shared(gradient))) {
      gradient = gradient.clone();
    }
    if (sum != nullptr) scope.emplace(leaf, *sum);
  }

  void make_ready(Node* node, const ReachedNode& reached, variable_list inputs,
                  const ReadyNode* from) {
    const uint64_t own = node->sequence_nr();
    if (from != nullptr && from->order.foreign != reached.foreign) from = nullptr;
    const uint64_t number = from != nullptr ? std::min(own, from->reached) : own;
    push({half().order_of(*node, reached, from, number), number, node, reached.leaf,
          reached.users_code, /*held=*/false, std::move(inputs)});
  }

  WalkVisitor& visitor_;
  ReachedNodes nodes_;
  std::vector<ReadyNode> ready_;  // a heap
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_NODE_RUNNER_H_
