// Split backward: a local backward in two halves, of which others wait for the first only.
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

  // Runs it, once: accumulates the remaining gradients into leaves, in the order of the whole
  // backward. The visitor is that of the first half, or like it.
  void run(WalkVisitor& visitor);

  bool empty() const { return held_ == nullptr; }

 private:
  friend WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                           torch::autograd::variable_list& gradients,
                                           WalkVisitor& visitor);
  std::unique_ptr<HeldGradients> held_;
};

// The first half of a backward: what the sinks, and the tensors that WalkVisitor::sum_of() returns,
// wait for. No leaf's .grad changes. Both halves together equal run_local_backward(), bit for bit.
//
// A matrix product or a convolution with a weight as operand runs in both halves, once for each of
// its gradients. Every other node runs only once, as a whole, because it would cost as much twice:
// it runs here if something waits for it, and what it computes for the weights is held.
//
// Users' code (hooks, custom functions) may write into the gradients that it is given. What it
// writes here is seen by what runs after it in the whole backward, and not by what runs before,
// though that may be held. So users' code whose gradients nodes of this half may share runs here,
// too, in its place. And what is held at the end shares memory with nobody: neither with what
// leaves the cell, nor with what others gave it.
//
// Requirements: visitor.settings.keep_graph is not set.
WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                  torch::autograd::variable_list& gradients, WalkVisitor& visitor);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_SPLIT_BACKWARD_H_
