// Gradient sums: gradients of one node added up as autograd's engine does it, bit for bit.
#ifndef GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_
#define GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstddef>

namespace gpipe::internal {

// Adds the term to input number `place` of the node, on the current stream. All gradients are on
// that stream once the node that computed them is done.
void add_to_inputs(torch::autograd::InputBuffer& inputs, size_t place, at::Tensor term,
                   torch::autograd::Node* node);

// Adds the term to a sum that outlives the walk. The sum is undefined as long as nothing has
// arrived.
void add_to_sum(at::Tensor& sum, at::Tensor term, torch::autograd::Node* node);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_GRADIENT_SUMS_H_
