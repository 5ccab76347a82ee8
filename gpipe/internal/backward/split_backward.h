// Split backward: a local backward in two halves; other stages wait for the first half only.
#ifndef GPIPE_INTERNAL_BACKWARD_SPLIT_BACKWARD_H_
#define GPIPE_INTERNAL_BACKWARD_SPLIT_BACKWARD_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>

#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

struct HeldGradients;

// The half of a backward that only the optimizer waits for, and what it needs: gradients, and nodes
// with their saved tensors. Move-only; destroying it discards those gradients.
class WeightBackward {
 public:
  WeightBackward();
  ~WeightBackward();
  WeightBackward(WeightBackward&&) noexcept;
  WeightBackward& operator=(WeightBackward&&) noexcept;

  // Runs this half, once: accumulates the remaining gradients into leaves, in the order of the
  // whole backward. The visitor is that of the first half, or behaves like it.
  void run(WalkVisitor& visitor);

  bool empty() const { return held_ == nullptr; }

 private:
  friend WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                           torch::autograd::variable_list& gradients,
                                           WalkVisitor& visitor);
  std::unique_ptr<HeldGradients> held_;
};

// Runs the first half of a backward: everything that the sinks, and the tensors that
// WalkVisitor::sum_of() returns, wait for. No leaf's .grad changes. Both halves together equal
// run_local_backward(), bit for bit.
//
// A matrix product or a convolution with a weight as operand runs in both halves, once for each of
// its gradients. Every other node runs only once, because running it for some of its gradients
// would cost as much as for all. It runs in this half if something waits for its result. The
// gradients that it computes for the weights are then kept for the second half.
//
// Users' code (hooks, custom functions) may write into the gradients that it is given. In the whole
// backward, nodes that run later see what it writes, and nodes that run earlier do not, though this
// half may hold them back. So users' code that may share gradients with nodes of this half runs in
// this half, too, at its place. And the gradients that are kept at the end share memory with no
// other tensor: neither with gradients that leave the cell, nor with those that the caller passed
// in.
//
// Requirements: visitor.settings.keep_graph is not set.
WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                  torch::autograd::variable_list& gradients, WalkVisitor& visitor);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_SPLIT_BACKWARD_H_
