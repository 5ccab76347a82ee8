// own_memory: gives outputs memory that neither the caller nor the model shares.
#ifndef GPIPE_INTERNAL_CALL_OWN_MEMORY_H_
#define GPIPE_INTERNAL_CALL_OWN_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/internal/model/model_state.h"

namespace gpipe::internal {

// The caller may change outputs in place, so nothing else may share their memory. Copies the
// outputs that are inputs, or that are in memory of the model.
void own_memory(const std::vector<at::Tensor>& inputs, const ModelState& model,
                std::vector<at::Tensor>& outputs);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_OWN_MEMORY_H_
