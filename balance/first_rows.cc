#include "balance/first_rows.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>

namespace gpipe::balance {

Tensors first_rows(const Tensors& tensors, int64_t rows, const std::vector<int64_t>& shared) {
  Tensors result;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    const bool whole =
        std::find(shared.begin(), shared.end(), static_cast<int64_t>(k)) != shared.end();
    result.push_back(whole || !tensor.defined() || tensor.dim() == 0 ? tensor
                                                                     : tensor.narrow(0, 0, rows));
  }
  return result;
}

}  // namespace gpipe::balance
