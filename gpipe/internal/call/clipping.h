// Clipping: scales gradients by their common norm, also where they are in several processes.
#ifndef GPIPE_INTERNAL_CALL_CLIPPING_H_
#define GPIPE_INTERNAL_CALL_CLIPPING_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// Does what gpipe::clip_grad_norm_ does (gpipe/clip_grad.h). With several processes, each has the
// gradients of some of the parameters, and the list of parameters is the same everywhere. The norm
// is taken over all gradients in the order of the list, so that it has the same bits as in one
// process. `name`: the name of this call. `keys`: the names of the parameters.
// With replicas, throws FoundByAll, and scales nothing, if a gradient is not the same in all
// replicas: it is there in some only, it is finite in some only, or its norm differs by more than
// another order of summation explains. A step leaves equal gradients, so the user has changed one
// by hand.
double clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite, const World& world = World(),
                      const std::string& name = "", const std::vector<std::string>& keys = {});

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_CLIPPING_H_
