// clip_grad_norm_: clips gradients that are on several devices, as those of a pipeline are.
#ifndef GPIPE_CLIP_GRAD_H_
#define GPIPE_CLIP_GRAD_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// Scales the gradients of the parameters so that their norm, taken as that of one vector, is at
// most `max_norm`; returns the norm before scaling. Parameters without a gradient are left out; if
// none has a gradient, the norm is 0. `norm_type` may be infinity.
//
// This is torch::nn::utils::clip_grad_norm_ for parameters on any devices: the same arguments and,
// on one device, the same bits. Each device waits for the others' norms on the device. The host
// waits once, for the result; if the first gradient is on the CPU, it also waits for each norm.
//
// For a pipeline over several processes, call GPipe's own clip_grad_norm_, in all of them. This
// function takes the norm of what it is given: for local_parameters(), the norm of one process,
// with a warning. LibTorch's own function does so without a warning.
//
// Throws c10::ValueError for a max_norm or norm_type that is below 0 or not a number, for
// parameters of other processes and, if `error_if_nonfinite`, for a norm that is not finite. The
// gradients are then unchanged.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace gpipe

#endif  // GPIPE_CLIP_GRAD_H_
