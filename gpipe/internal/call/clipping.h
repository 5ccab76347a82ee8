// Clipping: scales gradients by their common norm, also where they are in several processes.
#ifndef GPIPE_INTERNAL_CALL_CLIPPING_H_
#define GPIPE_INTERNAL_CALL_CLIPPING_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::internal {

// As gpipe::clip_grad_norm_ (gpipe/clip_grad.h). With `processes` each has the gradients of some of
// the parameters, whose list is the same everywhere; the norm is taken over all, in the order of
// the list, so that it has the same bits as in one process. `name`: of this call.
double clip_gradients(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite, Processes* processes = nullptr,
                      const std::string& name = "");

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_CLIPPING_H_
