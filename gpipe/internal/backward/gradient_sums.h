// Gradient sums: gradients of one node added up as autograd's engine does it, bit for bit.
#ifndef GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_
#define GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstddef>

namespace gpipe::internal {

// Adds the term to the input at `place` that the node waits for. On the current stream, on which
// all gradients are once their node is done.
void add_to_inputs(torch::autograd::InputBuffer& inputs, size_t place, at::Tensor term,
                   torch::autograd::Node* node);

// Adds the term to a sum that outlives the walk; undefined: nothing has arrived.
void add_to_sum(at::Tensor& sum, at::Tensor term, torch::autograd::Node* node);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_
