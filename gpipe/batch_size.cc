#include "gpipe/batch_size.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace gpipe {

bool is_shared(const std::vector<int64_t>& shared, size_t k) {
  return std::find(shared.begin(), shared.end(), static_cast<int64_t>(k)) != shared.end();
}

int64_t batch_size(const std::vector<at::Tensor>& tensors, const char* what,
                   const std::vector<int64_t>& shared) {
  for (const int64_t number : shared) {
    TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int64_t>(tensors.size()), "there are ",
                      tensors.size(), " tensors of ", what, ", and shared_inputs names number ",
                      number, "; they are counted from 0");
  }
  const bool may_share = std::string_view(what) != "target";
  int64_t rows = -1;
  size_t first = 0;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    if (!tensor.defined() || is_shared(shared, k)) continue;
    TORCH_CHECK_VALUE(tensor.dim() > 0, what, " ", k,
                      " has no dimension to cut into micro-batches; give every tensor the batch as "
                      "its dimension 0, or make a constant part of the model");
    if (rows < 0) {
      rows = tensor.size(0);
      first = k;
    }
    TORCH_CHECK_VALUE(
        tensor.size(0) == rows, what, " ", k, " has ", tensor.size(0), " rows in dimension 0, but ",
        what, " ", first, " has ", rows,
        "; all must have the same batch size to be cut into micro-batches",
        may_share ? " (the options' shared_inputs names those that are not cut)" : "");
  }
  TORCH_CHECK_VALUE(rows >= 0, "there is no defined tensor among the ", tensors.size(),
                    " tensors of ", what,
                    may_share ? " that is cut (those of the options' shared_inputs are not)" : "",
                    "; at least one is needed to tell the batch size");
  return rows;
}

}  // namespace gpipe
