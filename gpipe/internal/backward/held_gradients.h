// HeldGradients: the gradients that the first half of a split backward leaves to the second half.
#ifndef GPIPE_INTERNAL_BACKWARD_HELD_GRADIENTS_H_
#define GPIPE_INTERNAL_BACKWARD_HELD_GRADIENTS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/backward/node_order.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

// The gradients that one node of the first half leaves to the second half.
struct HeldBack {
  std::optional<NodeOrder> order;  // the node's place in the second half; empty for roots
  // A product that must run again for these edges; null: no node has to run again.
  NodePtr product;
  torch::autograd::edge_list
      edges;  // one for each edge of the node; invalid if its gradient is not held
  // The product's inputs; without a product, the gradients for the edges.
  torch::autograd::variable_list gradients;
};

// Thread-safety: none.
struct HeldGradients {
  std::vector<HeldBack> entries;
  // [node with user code] What WalkVisitor::before_users_code() gets as `next`.
  absl::flat_hash_map<const torch::autograd::Node*, uint64_t> next_made;

  // Called at the end of the first half. A gradient whose memory another tensor also has is moved
  // into other memory. Held gradients that shared memory with each other still do.
  void take_possession();
  // Called at the start of the second half: see check_held_gradients().
  void check();

 private:
  // Calls visit() for each group of held gradients that share one memory, if other tensors have it,
  // too.
  template <typename Visit>
  void for_each_shared(const Visit& visit);
  torch::autograd::variable_list copies_of_gradients() const;

  torch::autograd::variable_list copies_;  // the gradients' values, if they are checked
};

// For tests: whether second halves check that no other tensor has the memory of the held gradients,
// and that their values are still those at the end of the first half. Default: false.
void check_held_gradients(bool on);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_HELD_GRADIENTS_H_
