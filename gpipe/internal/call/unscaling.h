// Unscaling: divides gradients by the factor that a loss was multiplied by, and finds infinities.
#ifndef GPIPE_INTERNAL_CALL_UNSCALING_H_
#define GPIPE_INTERNAL_CALL_UNSCALING_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// Multiplies the gradients of the parameters by 1 / `loss_scale`, as LibTorch's own kernel for
// GradScaler does. Returns whether all of them were finite: over processes, whether they were in
// all processes, even if one has no gradient. `name`: the name of the call. Throws c10::ValueError
// for a `loss_scale` that is not positive and finite.
bool unscale_gradients(const std::vector<at::Tensor>& parameters, double loss_scale,
                       const World& world = World(), const std::string& name = "");

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_UNSCALING_H_
