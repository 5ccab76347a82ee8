#include "gpipe/clip_grad.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "gpipe/internal/call/clipping.h"
#include "gpipe/internal/processes/local_parameters.h"
#include "gpipe/runtime/warning_log.h"

namespace gpipe {

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  const auto is_elsewhere = [](const at::Tensor& parameter) {
    return parameter.is_meta() && !parameter.grad().defined();
  };
  const bool some_here = std::any_of(parameters.begin(), parameters.end(),
                                     [](const at::Tensor& p) { return !p.is_meta(); });
  TORCH_CHECK_VALUE(
      !some_here || std::none_of(parameters.begin(), parameters.end(), is_elsewhere),
      "some of the parameters are on meta, as those of layers in other processes are, whose "
      "gradients would be left out; call clip_grad_norm_ of the pipeline, in all processes");
  static std::atomic<bool> told{false};
  if (!told && internal::LocalParameters::are_all_in(parameters) && !told.exchange(true)) {
    internal::log_warning(
        "gpipe::clip_grad_norm_ was given the parameters that this process has of a pipeline over "
        "several, and clips them by their own norm, which is another one in each process. Call "
        "clip_grad_norm_ of the pipeline, in all processes, which takes the norm over all of them; "
        "if it is meant so, this is all that is said of it");
  }
  return internal::clip_gradients(parameters, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace gpipe
