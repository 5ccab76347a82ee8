// WalkVisitor: the settings of a walk through a graph of autograd, and the decisions that the walk
// leaves to its caller.
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
  // Whether saved tensors are kept. A split backward cannot keep them.
  bool keep_graph = false;

  // Whether the walk throws c10::ValueError for a result of a node that is not finite.
  bool check_finite = false;

  // The GradientSinks in which the graph may end. Reaching another one is an error: a tensor of
  // another cell got here in a way that the pipeline does not know.
  c10::SmallVector<const GradientSink*, 2> sinks;

  // The nodes that the cell has made. Nodes from outside run after them, as they would in a single
  // graph, where they are older. Their sequence numbers say nothing about that, because another
  // thread may have made them. Default: all nodes.
  std::optional<NodeRange> own;
};

// How far a walk has come, for messages.
struct WalkProgress {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  // Whether all nodes are found. No node runs before that.
  bool found = false;
  // After all are found: the sequence number of the node that runs; kNone if none has run yet.
  // Before: the sequence number of the last node of `own` on the way to the node that is reached;
  // kNone if that node is a root. Leaves are not recorded.
  uint64_t node = kNone;
};

// A WalkVisitor itself accumulates into every leaf's .grad, and lets every node run. A caller
// overrides the functions that it needs otherwise. Any function may throw; then no further node
// runs.
//
// Thread-safety: none; called on the thread that walks.
class WalkVisitor {
 public:
  WalkVisitor() = default;
  virtual ~WalkVisitor() = default;
  WalkVisitor(const WalkVisitor&) = delete;
  WalkVisitor& operator=(const WalkVisitor&) = delete;

  // Called before any node runs, for each node reached that is neither in WalkSettings::own nor a
  // leaf.
  virtual void enter_foreign(const torch::autograd::Node& /*node*/) {}

  // Called before any node runs, for each leaf that is reached. Returns null if its gradient is to
  // be accumulated. Otherwise it returns the tensor in which the terms are added up, in the order
  // in which the engine would do so, or discarded(). The tensor must stay at its address.
  virtual at::Tensor* sum_of(const NodePtr& /*accumulator*/, const at::Tensor& /*leaf*/) {
    return nullptr;
  }

  // Called if sum_of() has returned null, so that the leaf's gradient is to be accumulated. Returns
  // null for its .grad, or a tensor to use in its place. In the latter case the leaf's hooks run,
  // except for post-accumulate hooks, which are for .grad. The tensor must stay at its address.
  virtual at::Tensor* in_place_of_grad(const NodePtr& /*accumulator*/, const at::Tensor& /*leaf*/) {
    return nullptr;
  }

  // Called before each node that runs user code: hooks, custom functions. `next`: the lowest
  // sequence number among the nodes made after this node.
  virtual void before_users_code(const torch::autograd::Node& /*node*/, uint64_t /*next*/) {}

  // A result of sum_of(): the leaf's gradient is not needed.
  static at::Tensor* discarded();

  // Set before the walk.
  WalkSettings settings;

  // Written by the walk.
  WalkProgress progress;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_WALK_VISITOR_H_
