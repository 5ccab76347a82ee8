// NodeKind: what a node of autograd's graph is for a backward that runs it on its own thread.
#ifndef GPIPE_INTERNAL_BACKWARD_NODE_KINDS_H_
#define GPIPE_INTERNAL_BACKWARD_NODE_KINDS_H_

#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace gpipe::internal {

enum class NodeKind : uint8_t {
  kLeaf,      // accumulates a leaf's gradient
  kSink,      // a GradientSink: where the cell's graph ends
  kOperator,  // belongs to one of LibTorch's own operators, or is an OperatorNode
  kOther,     // runs user code
};

// A node of this library that behaves like a node of LibTorch's operators: it needs only its inputs
// from the engine, and runs no user code.
class OperatorNode : public torch::autograd::Node {
 public:
  using Node::Node;
};

NodeKind kind_of(const torch::autograd::Node& node);

// Whether hooks are registered on the node, or on the tensor whose gradient it takes.
bool has_hooks(torch::autograd::Node& node);

// Whether the node belongs to a user's torch::autograd::Function, or to Python's.
bool is_custom_function(const torch::autograd::Node& node);

// Whether the node runs user code other than hooks.
inline bool runs_users_code(const torch::autograd::Node& node) {
  return kind_of(node) == NodeKind::kOther;
}

// Whether users' code, which may write into gradients, runs with the node: its own code, or hooks
// before or after it.
bool may_write(torch::autograd::Node& node);

// Whether the node computes each of its results separately, and at considerable cost. Such a node
// may run twice, each time for some of its results.
bool is_product(const torch::autograd::Node& node);

// Whether the node's results are in new memory, as those of products are. The known nodes are those
// that gradients of computed weights pass through. Any other node may pass on the gradient that it
// is given, or a view of it.
bool computes_anew(const torch::autograd::Node& node);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_NODE_KINDS_H_
