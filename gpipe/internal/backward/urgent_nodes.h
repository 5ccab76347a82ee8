// Urgent nodes: the nodes that run in the first half of a split backward.
#ifndef GPIPE_INTERNAL_BACKWARD_URGENT_NODES_H_
#define GPIPE_INTERNAL_BACKWARD_URGENT_NODES_H_

#include <torch/csrc/autograd/edge.h>

#include "gpipe/internal/backward/reached_nodes.h"

namespace gpipe::internal {

// Marks the nodes that lead to a sink, or to a leaf whose gradient other stages wait for
// (ReachedNode::sum). Also marks nodes that lead to users' code, if that code may write into memory
// that the former nodes share.
//
// Requirements: all nodes behind `roots` are found.
void mark_urgent(ReachedNodes& nodes, const torch::autograd::edge_list& roots);

// A copy of the edges in which those to urgent nodes are invalid. Empty if no valid edge is left.
torch::autograd::edge_list not_urgent(ReachedNodes& nodes, const torch::autograd::edge_list& edges);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_URGENT_NODES_H_
