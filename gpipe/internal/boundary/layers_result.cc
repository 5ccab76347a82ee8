#include "gpipe/internal/boundary/layers_result.h"

namespace gpipe::internal {

void add_outputs(const Ports& ports, LayersResult& result) {
  // A view whose base has changed since gets a new node when its grad_fn is asked for. The plain
  // model's layers ask in this order, so the nodes get their sequence numbers in this order.
  const auto make_node = [](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) (void)tensor.grad_fn();
  };
  for (const Value& output : result.outputs) {
    for (const at::Tensor& tensor : output.tensors) make_node(tensor);
  }
  for (const size_t k : ports.gradient_order) {
    const std::vector<at::Tensor>& tensors = result.outputs[k].tensors;
    for (size_t n = 0; n < tensors.size(); ++n) result.graph.add_output(k, n, tensors[n]);
  }
}

}  // namespace gpipe::internal
