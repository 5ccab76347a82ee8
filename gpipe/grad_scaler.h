// GradScaler: chooses the factor of the loss (StepOptions::loss_scale) that float16 needs.
#ifndef GPIPE_GRAD_SCALER_H_
#define GPIPE_GRAD_SCALER_H_

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <type_traits>

#include "gpipe/gpipe.h"

namespace gpipe {

// The names and defaults are those of torch.amp.GradScaler.
struct GradScalerOptions {
  // The first factor. As float32 numbers, the factor and 1 / factor must be positive and finite.
  TORCH_ARG(double, init_scale) = 65536;
  // What the factor is multiplied by after `growth_interval` steps in a row whose gradients were
  // finite; above 1.
  TORCH_ARG(double, growth_factor) = 2;
  // What the factor is multiplied by after a step whose gradients were not finite; above 0 and
  // below 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  // After how many steps with finite gradients the factor grows; at least 1.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  // Whether the scaler does anything: if not, the factor is 1, every step is made, and no order of
  // calls is an error.
  TORCH_ARG(bool, enabled) = true;
};

// The state from which a GradScaler continues. A value type; Progress (gpipe/saving/saving.h) keeps
// it.
struct GradScalerState {
  double scale = 65536;      // a float32's value
  int64_t growth_steps = 0;  // steps in a row with finite gradients, counted anew after each growth
};

// Multiplies gradients by a factor that float16 can hold them with, divides them again before they
// are used, leaves out the optimizer's steps whose gradients are not finite, and adapts the factor.
// It is torch.amp.GradScaler for a pipeline, with the same factor in each step. All processes of
// all replicas agree on whether the gradients are finite, before any of them changes a parameter.
//
// Requirements: all processes make the same calls, in the same order, and give the same options.
//
// Example:
//   gpipe::GradScaler scaler(pipe);
//   ...
//   optimizer.zero_grad();
//   pipe->step(inputs, targets, loss_fn, gpipe::StepOptions().loss_scale(scaler.scale()));
//   scaler.unscale_();               // only where gradients are clipped
//   pipe->clip_grad_norm_(1.0);
//   scaler.step(optimizer);
//   scaler.update();
class GradScaler {
 public:
  // Throws c10::ValueError for options that are out of their bounds, and for an empty pipeline.
  explicit GradScaler(GPipe pipe, GradScalerOptions options = {});

  // The factor of the next step, for StepOptions::loss_scale.
  double scale() const { return options_.enabled() ? state_.scale : 1; }

  // Divides all gradients by the factor. Returns whether all are finite. Call it between the steps
  // of the pipeline and whatever reads gradients; step() calls it otherwise. Throws c10::ValueError
  // the second time before update(), since gradients would be divided twice.
  bool unscale_();

  // Calls optimizer.step(), of any optimizer (torch::optim::Optimizer, ZeroOptimizer), unless a
  // gradient is not finite. Returns whether it did. Throws c10::ValueError the second time before
  // update(). Where the optimizer throws, the factor stays, and the next step may begin.
  //
  // A torch::optim::Optimizer may have parameters that the pipeline lacks, such as one of the loss
  // function: their gradients are divided and checked here, also behind unscale_(), which does not
  // know them.
  template <typename Optimizer>
  bool step(Optimizer& optimizer) {
    const torch::optim::Optimizer* known = nullptr;
    if constexpr (std::is_base_of_v<torch::optim::Optimizer, Optimizer>) known = &optimizer;
    const bool takes_it = begin_step(known);
    try {
      if (takes_it) optimizer.step();
    } catch (...) {
      begin_anew();
      throw;
    }
    return takes_it;
  }

  // Adapts the factor. Call it once after each step(). Throws c10::ValueError if neither step() nor
  // unscale_() was called since the last time, and where the factor has become so small that no
  // float32 divides by it: then the gradients are not finite whatever the factor is.
  void update();

  // The state, to save it and to go on from it. load() throws c10::ValueError for a scale that
  // could not be an init_scale, and for negative growth_steps.
  const GradScalerState& state() const { return state_; }
  void load(const GradScalerState& state);

 private:
  // What the gradients of this step are known to be.
  enum class Gradients { kScaled, kFinite, kNotFinite };

  // `optimizer`: null if step() was given one that is not a torch::optim::Optimizer.
  bool begin_step(const torch::optim::Optimizer* optimizer);
  // unscale_() for the optimizer's parameters that the pipeline lacks.
  bool unscale_others(const torch::optim::Optimizer* optimizer);
  void begin_anew();

  GPipe pipe_;
  GradScalerOptions options_;
  GradScalerState state_;
  Gradients gradients_ = Gradients::kScaled;
  bool has_stepped_ = false;
};

}  // namespace gpipe

#endif  // GPIPE_GRAD_SCALER_H_
