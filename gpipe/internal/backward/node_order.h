// NodeOrder: a node's place in the order of autograd's engine.
#ifndef GPIPE_INTERNAL_BACKWARD_NODE_ORDER_H_
#define GPIPE_INTERNAL_BACKWARD_NODE_ORDER_H_

#include <cstddef>
#include <cstdint>

namespace gpipe::internal {

// Among the nodes that are ready, the engine runs the one that was made last in the forward. Nodes
// from outside the cell run after all others.
struct NodeOrder {
  bool foreign = false;
  uint64_t number = 0;  // a node with a higher number runs first
  // Among nodes with the same number, a lower position runs first, then the node that was made
  // later.
  size_t position = 0;
  uint64_t sequence_nr = 0;
};

inline bool runs_before(const NodeOrder& a, const NodeOrder& b) {
  if (a.foreign != b.foreign) return b.foreign;
  if (a.number != b.number) return a.number > b.number;
  if (a.position != b.position) return a.position < b.position;
  return a.sequence_nr > b.sequence_nr;
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_NODE_ORDER_H_
