#include "gpipe/internal/backward/gradient_sink.h"

#include <torch/csrc/autograd/variable.h>

#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

uint32_t GradientSink::attach(const at::Tensor& tensor) {
  const uint32_t index = add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, {getptr(), index});
  return index;
}

}  // namespace gpipe::internal
