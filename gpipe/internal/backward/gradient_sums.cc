#include "gpipe/internal/backward/gradient_sums.h"

#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {

using torch::autograd::InputBuffer;
using torch::autograd::Node;

void add_to_inputs(InputBuffer& inputs, size_t place, at::Tensor term, Node* node) {
  std::optional<c10::Stream> here;
  if (term.defined() && !term.device().is_cpu()) here = current_stream(term.device());
  // On a device with values, the buffer adds in place if no other tensor has the first term's
  // memory. On meta the buffer expects that an in-place addition may do anything, and makes a new
  // tensor for the sum. A memory plan would count that tensor, so meta tensors are added here.
  at::Tensor& first = inputs.buffer[place];
  if (term.defined() && term.is_meta() && first.defined() && !c10::GradMode::is_enabled() &&
      first.use_count() == 1 && first.has_storage() && first.storage().use_count() == 1 &&
      first.is_non_overlapping_and_dense() && first.sizes() == term.sizes() &&
      first.scalar_type() == term.scalar_type()) {
    first.add_(term);
    return;
  }
  inputs.add(place, std::move(term), here, here, node);
}

void add_to_sum(at::Tensor& sum, at::Tensor term, Node* node) {
  InputBuffer buffer(1);
  // The sum is added and not assigned, because the buffer notes the stream of its first term.
  add_to_inputs(buffer, 0, std::move(sum), node);
  add_to_inputs(buffer, 0, std::move(term), node);
  sum = std::move(buffer.buffer[0]);
}

}  // namespace gpipe::internal
