#include "gpipe/internal/backward/gradient_sink.h"

#include <torch/csrc/autograd/variable.h>

namespace gpipe::internal {

uint32_t GradientSink::attach(const at::Tensor& tensor) {
  const uint32_t index = add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, {shared_from_this(), index});
  return index;
}

}  // namespace gpipe::internal
