// HeldGradients: what the first half of a split backward leaves to the second.
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

// What one node leaves.
struct HeldBack {
  std::optional<NodeOrder> order;  // of the node in the second half; none: these are roots
  // A product that is to run again for these edges; null: it has run for all edges.
  NodePtr product;
  torch::autograd::edge_list edges;  // as many as the node has; invalid if not held back
  // The product's inputs, or the gradients for the edges.
  torch::autograd::variable_list gradients;
};

// Thread-safety: none.
struct HeldGradients {
  std::vector<HeldBack> entries;
  // For nodes with user code, see WalkVisitor::before_users_code().
  absl::flat_hash_map<const torch::autograd::Node*, uint64_t> next_made;

  // Called at the end of the first half: what others have the memory of gets other memory, and what
  // shared memory still does.
  void take_possession();
  // Called at the begin of the second half: see check_held_gradients().
  void check();

 private:
  // Calls visit() for the gradients of each memory that others may have, too.
  template <typename Visit>
  void for_each_shared(const Visit& visit);
  torch::autograd::variable_list copies_of_gradients() const;

  torch::autograd::variable_list copies_;  // of the gradients, if they are checked
};

// For tests: whether second halves check that nobody shares the memory of what was held, and that
// its values are still those at the end of the first half. Default: not.
void check_held_gradients(bool on);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_HELD_GRADIENTS_H_
