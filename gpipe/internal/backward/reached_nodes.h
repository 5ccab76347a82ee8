// ReachedNodes: the nodes that a backward from some roots will run, found before any of them runs.
#ifndef GPIPE_INTERNAL_BACKWARD_REACHED_NODES_H_
#define GPIPE_INTERNAL_BACKWARD_REACHED_NODES_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

// Lists have room for this many nodes without an allocation. A cell of one layer has about six.
inline constexpr size_t kUsualNodes = 12;
using NodeList = c10::SmallVector<torch::autograd::Node*, kUsualNodes>;

struct ReachedNode {
  int gradients = 0;  // the number of gradients that have not arrived yet
  bool leaf = false;
  bool users_code = false;                 // user code, hooks or anomaly mode: the engine runs it
  bool foreign = false;                    // neither a leaf nor in WalkSettings::own
  bool urgent = false;                     // belongs to the first half of a split backward
  uint64_t from = WalkProgress::kNone;     // for a foreign node: as in WalkProgress::node
  at::Tensor* sum = nullptr;               // for a leaf: the result of WalkVisitor::sum_of()
  at::Tensor* in_place_of_grad = nullptr;  // for a leaf without `sum`; null: its .grad
  std::optional<torch::autograd::InputBuffer> inputs;
};

inline const at::Tensor& leaf_of(const torch::autograd::Node& accumulator) {
  return static_cast<const torch::autograd::AccumulateGrad&>(accumulator).variable;
}

// Thread-safety: none.
class ReachedNodes {
 public:
  using Node = torch::autograd::Node;
  using Edge = torch::autograd::Edge;

  // The visitor must outlive this object.
  explicit ReachedNodes(WalkVisitor& visitor);
  ReachedNodes(const ReachedNodes&) = delete;
  ReachedNodes& operator=(const ReachedNodes&) = delete;

  // Notes that another gradient will arrive along this edge. The edge must be valid, and its graph
  // must outlive this object. `from`: as in WalkProgress::node.
  void reach(const Edge& edge, uint64_t from = WalkProgress::kNone);
  // Finds all nodes behind those that were reached, and counts the gradients that each waits for.
  // Runs no node. Throws what the visitor throws, and c10::Error for a GradientSink that is not one
  // of visitor.settings.sinks.
  void find_rest();

  // Requirements: the node was reached.
  ReachedNode& at(const Node* node) {
    const auto found = nodes_.find(node);
    TORCH_INTERNAL_ASSERT(found != nodes_.end());
    return found->second;
  }
  ReachedNode& at(const Edge& edge) { return at(edge.function.get()); }

  // Calls visit(Node&, ReachedNode&) for each node, in no particular order.
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (auto& [node, reached] : nodes_) visit(*node, reached);
  }

  // The lowest sequence number among the nodes that the cell has made after this one.
  uint64_t next_made_after(const Node& earlier) const;

  // The leaves that this walk accumulates into and that had no gradient when they were reached.
  const c10::SmallVector<Node*, 4>& fresh_leaves() const { return fresh_leaves_; }
  // Whether users' code runs with a node that is not a leaf.
  bool has_writers() const { return has_writers_; }
  // Whether a leaf accumulates into another tensor in place of its .grad.
  bool replaces_grads() const { return replaces_grads_; }

  // The tensor that a leaf accumulates into.
  static at::Tensor& sum_in(const Node& leaf, const ReachedNode& reached) {
    return reached.in_place_of_grad != nullptr ? *reached.in_place_of_grad
                                               : leaf_of(leaf).mutable_grad();
  }

 private:
  bool is_foreign(const Node& node) const {
    const std::optional<NodeRange>& own = visitor_.settings.own;
    return own && !own->contains(node);
  }
  void reach_sink(Node& node, ReachedNode& reached);
  void reach_leaf(const Edge& edge, ReachedNode& reached);

  WalkVisitor& visitor_;
  const bool anomaly_;
  bool has_writers_ = false;
  bool replaces_grads_ = false;
  absl::flat_hash_map<Node*, ReachedNode> nodes_;
  NodeList found_;  // nodes whose edges are still to be followed
  c10::SmallVector<Node*, 4> fresh_leaves_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_REACHED_NODES_H_
