// Walks for tests: roots of graphs, and a backward with the default visitor.
#ifndef GPIPE_INTERNAL_BACKWARD_WALKS_FOR_TESTS_H_
#define GPIPE_INTERNAL_BACKWARD_WALKS_FOR_TESTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <vector>

#include "gpipe/internal/backward/local_backward.h"

namespace gpipe::internal {

inline torch::autograd::edge_list roots_of(const std::vector<at::Tensor>& outputs) {
  torch::autograd::edge_list roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
  }
  return roots;
}

inline torch::autograd::variable_list ones_for(const std::vector<at::Tensor>& outputs) {
  torch::autograd::variable_list gradients;
  for (const at::Tensor& output : outputs) gradients.push_back(at::ones_like(output));
  return gradients;
}

// Runs a local backward with a visitor that changes nothing.
inline void run_plainly(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients,
                        const WalkSettings& settings = {}) {
  WalkVisitor visitor;
  visitor.settings = settings;
  run_local_backward(roots, gradients, visitor);
}

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_WALKS_FOR_TESTS_H_
