#include "balance/costs/first_rows.h"

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "gpipe/batch_size.h"

namespace gpipe::balance {

Tensors first_rows(const Tensors& tensors, int64_t rows, const std::vector<int64_t>& shared) {
  Tensors result;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    result.push_back(is_shared(shared, k) || !tensor.defined() || tensor.dim() == 0
                         ? tensor
                         : tensor.narrow(0, 0, rows));
  }
  return result;
}

c10::Device device_of(const torch::nn::Sequential& model, const Tensors& sample,
                      c10::Device otherwise) {
  for (const at::Tensor& tensor : model->parameters()) {
    if (tensor.defined()) return tensor.device();
  }
  for (const at::Tensor& tensor : sample) {
    if (tensor.defined()) return tensor.device();
  }
  return otherwise;
}

}  // namespace gpipe::balance
