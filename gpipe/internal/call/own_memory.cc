#include "gpipe/internal/call/own_memory.h"

#include <algorithm>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {

void own_memory(const std::vector<at::Tensor>& inputs, const ModelState& model,
                std::vector<at::Tensor>& outputs) {
  for (at::Tensor& output : outputs) {
    const c10::StorageImpl* storage = storage_of(output);
    if (storage == nullptr) continue;
    const bool given = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
      return storage_of(input) == storage;
    });
    if (given || model.owns(storage)) output = copy_in_layout(output);
  }
}

}  // namespace gpipe::internal
