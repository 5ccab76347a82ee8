// Clipping: scales gradients by their common norm, also where they are in several processes.
#ifndef GPIPE_INTERNAL_CALL_CLIPPING_H_
#define GPIPE_INTERNAL_CALL_CLIPPING_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// As gpipe::clip_grad_norm_ (gpipe/clip_grad.h). Over processes each has the gradients of some of
// the parameters, whose list is the same everywhere; the norm is taken over all, in the order of
// the list, so that it has the same bits as in one process. `name`: of this call. `keys`: of the
// parameters.
// Over replicas it throws FoundByAll, and scales nothing, where a gradient is not the same in all
// of them: there only in some, finite only in some, or its norm off by more than the order of a sum
// explains. A step leaves equal ones, so the user has written one by hand.
double clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite, const World& world = World(),
                      const std::string& name = "", const std::vector<std::string>& keys = {});

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_CLIPPING_H_
