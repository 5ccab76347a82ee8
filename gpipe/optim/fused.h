// FusedAdamW, FusedAdam, FusedSgd, FusedAdagrad: LibTorch's optimizers with LibTorch's fused
// kernels.
//
// The update of all parameters is one kernel for each device and type, while torch::optim runs
// several operators for each parameter.
#ifndef GPIPE_OPTIM_FUSED_H_
#define GPIPE_OPTIM_FUSED_H_

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "gpipe/optim/saved_as.h"

namespace gpipe {

// Each of these classes is the optimizer of torch::optim from which it is derived, with the same
// options, groups and states. A run that was saved with one of the two can go on with the other
// (save_checkpoint writes torch::optim's type). The update is the same up to rounding:
// docs/design/optimizers.md has the differences in units in the last place.
//
// step() throws c10::ValueError, before anything changes, for a parameter that is complex or whose
// elements share memory or leave gaps, and for a sparse gradient. The optimizers of torch::optim
// take these. FusedSgd's step() throws c10::NotImplementedError for parameters in bfloat16 or
// float16 on the CPU if LibTorch's kernel computes wrong values in that type, as the kernel of
// 2.11.0 does in bfloat16.
//
// Thread-safety: one call at a time, as for torch::optim's optimizers.
//
// Example:
//   gpipe::FusedAdamW optimizer(pipe->local_parameters(), torch::optim::AdamWOptions(3e-4));
class FusedAdamW final : public torch::optim::AdamW, public SavedAs<torch::optim::AdamW> {
 public:
  using torch::optim::AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdam final : public torch::optim::Adam, public SavedAs<torch::optim::Adam> {
 public:
  using torch::optim::Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedSgd final : public torch::optim::SGD, public SavedAs<torch::optim::SGD> {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdagrad final : public torch::optim::Adagrad, public SavedAs<torch::optim::Adagrad> {
 public:
  using torch::optim::Adagrad::Adagrad;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace gpipe

#endif  // GPIPE_OPTIM_FUSED_H_
