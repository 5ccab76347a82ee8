// ReplayNode: the node that stands for all layers of a cell whose graphs of kernels are replayed.
#ifndef GPIPE_INTERNAL_GRAPHS_REPLAY_NODE_H_
#define GPIPE_INTERNAL_GRAPHS_REPLAY_NODE_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <string>
#include <utility>

#include "gpipe/internal/backward/node_kinds.h"

namespace gpipe::internal {

// A ReplayNode's inputs are the gradients of the cell's outputs. Its results are the gradients of
// the cell's inputs and of the leaves, in the order of `edges`. A walk runs it like one of
// LibTorch's own nodes.
class ReplayNode final : public OperatorNode {
 public:
  using Run = std::function<torch::autograd::variable_list(torch::autograd::variable_list)>;

  ReplayNode(torch::autograd::edge_list edges, Run run)
      : OperatorNode(std::move(edges)), run_(std::move(run)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return run_(std::move(gradients));
  }
  std::string name() const override { return "GPipeReplay"; }

 private:
  const Run run_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_REPLAY_NODE_H_
