// owner_of: the stage that accumulates a leaf's gradient.
#ifndef GPIPE_INTERNAL_CELL_LEAF_OWNER_H_
#define GPIPE_INTERNAL_CELL_LEAF_OWNER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/model/model_state.h"

namespace gpipe::internal {

// `stage`, on `device`: the stage whose walk has reached the leaf. `parameter`: the leaf's entry in
// the model; null if no layer has registered it. Throws c10::Error for a parameter of a later stage
// that this stage uses without having registered it.
int64_t owner_of(const RunContext& run, int64_t stage, c10::Device device, const at::Tensor& leaf,
                 const ModelState::Parameter* parameter);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_LEAF_OWNER_H_
