// GradientSink: where the graph of a cell ends on the side of its inputs.
#ifndef GPIPE_INTERNAL_BACKWARD_GRADIENT_SINK_H_
#define GPIPE_INTERNAL_BACKWARD_GRADIENT_SINK_H_

#include <torch/csrc/autograd/function.h>

#include <string>

namespace gpipe::internal {

// A sink of autograd's graph that keeps the gradients that arrive at it.
//
// A sink replaces leaf tensors with a .grad. The tensors that are attached to it are not leaves, so
// the first layer of a stage may change them in place, as it may in the unpartitioned model.
//
// Guarantees: a tensor that the backward did not reach has an undefined gradient.
//
// Thread-safety: none; after a backward over the cell's graph, gradients() belongs to the thread
// that ran it.
class GradientSink : public torch::autograd::Node {
 public:
  // Makes `tensor` (detached, of a differentiable dtype) require a gradient, which will end here.
  // Returns its index in gradients().
  uint32_t attach(const at::Tensor& tensor);

  torch::autograd::variable_list& gradients() { return gradients_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradients_ = std::move(gradients);
    return {};
  }
  std::string name() const override { return "GPipeGradientSink"; }

 private:
  torch::autograd::variable_list gradients_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GRADIENT_SINK_H_
