// WalkVisitor: how a walk through a graph of autograd is told to walk, and what it asks whoever
// wants it.
#ifndef GPIPE_INTERNAL_BACKWARD_WALK_VISITOR_H_
#define GPIPE_INTERNAL_BACKWARD_WALK_VISITOR_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

class GradientSink;

// The nodes that thread `thread` has made, with sequence numbers from `begin` on.
struct NodeRange {
  uint64_t thread;
  uint64_t begin;

  bool contains(const torch::autograd::Node& node) const {
    return node.thread_id() == thread && node.sequence_nr() >= begin;
  }
};

struct WalkSettings {
  // Saved tensors are not released. A split backward cannot keep them.
  bool keep_graph = false;

  // Throws c10::ValueError for a gradient that a node gives and that is not finite.
  bool check_finite = false;

  // The GradientSinks in which the graph may end. Reaching another one is an error: a tensor of
  // another cell got here in a way that the pipeline does not know.
  c10::SmallVector<const GradientSink*, 2> sinks;

  // The nodes that the cell has made. Nodes from outside run after them, as in a single graph, in
  // which they are older. Their sequence numbers may be those of another thread and so say nothing
  // about the order. Default: all nodes.
  std::optional<NodeRange> own;
};

// How far a walk has come, for messages.
struct WalkProgress {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  // Whether all nodes are found. Before, nothing runs.
  bool found = false;
  // The sequence number of the node that runs, or, before all are found, of the last node of `own`
  // on the way to the one that is reached. kNone: none has run yet; reached as a root. Leaves are
  // not recorded.
  uint64_t node = kNone;
};

// As it is, it accumulates into every leaf's .grad, and lets everything run. What a caller wants to
// be otherwise, it overrides; any function may throw, and then no further node runs.
//
// Thread-safety: none; called on the thread that walks.
class WalkVisitor {
 public:
  WalkVisitor() = default;
  virtual ~WalkVisitor() = default;
  WalkVisitor(const WalkVisitor&) = delete;
  WalkVisitor& operator=(const WalkVisitor&) = delete;

  // Before anything runs, for each node reached that is neither in WalkSettings::own nor a leaf.
  virtual void enter_foreign(const torch::autograd::Node& /*node*/) {}

  // Before anything runs, for each leaf that is reached. Returns null if its gradient is to be
  // accumulated. Otherwise it returns the tensor in which the terms are added up, in the order in
  // which the engine would do so, or discarded(). The tensor must stay at its address.
  virtual at::Tensor* sum_of(const NodePtr& /*accumulator*/, const at::Tensor& /*leaf*/) {
    return nullptr;
  }

  // Then for each leaf whose gradient is to be accumulated here. Returns null for its .grad, or a
  // tensor in its place: the leaf's hooks run, but for a post-accumulate hook, which is for .grad.
  // The tensor must stay at its address.
  virtual at::Tensor* in_place_of_grad(const NodePtr& /*accumulator*/, const at::Tensor& /*leaf*/) {
    return nullptr;
  }

  // Before each node that runs user code: hooks, custom functions. `next`: the lowest sequence
  // number among the nodes made after it.
  virtual void before_users_code(const torch::autograd::Node& /*node*/, uint64_t /*next*/) {}

  // A result of sum_of(): nobody wants the leaf's gradient.
  static at::Tensor* discarded();

  // Set before the walk.
  WalkSettings settings;

  // Written by the walk.
  WalkProgress progress;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_WALK_VISITOR_H_
