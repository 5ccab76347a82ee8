// GraphLeaves: the leaves of a graph of autograd, and whether a replay can stand for the graph.
#ifndef GPIPE_INTERNAL_GRAPHS_GRAPH_LEAVES_H_
#define GPIPE_INTERNAL_GRAPHS_GRAPH_LEAVES_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

// A value type.
struct GraphLeaves {
  struct Leaf {
    torch::autograd::Edge accumulator;
    at::Tensor tensor;
    int64_t uses;
  };
  std::vector<Leaf> leaves;  // in the order in which they are found
  // Empty, or the reason why a replay cannot stand for the graph: users' code that each backward
  // has to call (hooks, custom functions), or nodes that are not `own`.
  std::string reason;
};

GraphLeaves leaves_of(const torch::autograd::edge_list& roots, const NodeRange& own);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_GRAPH_LEAVES_H_
