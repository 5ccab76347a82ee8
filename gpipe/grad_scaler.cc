#include "gpipe/grad_scaler.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/internal/call/unscaling.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/world.h"

namespace gpipe {
namespace {

// Whether gradients can be multiplied and divided by `value` as a float32.
bool is_factor(double value) {
  const auto factor = static_cast<float>(value);
  return factor > 0 && std::isfinite(factor) && std::isfinite(1 / factor);
}
constexpr const char* kFactors = "positive and finite, also as a float32 and 1 divided by it";

}  // namespace

GradScaler::GradScaler(GPipe pipe, GradScalerOptions options)
    : pipe_(std::move(pipe)), options_(options) {
  TORCH_CHECK_VALUE(!pipe_.is_empty(),
                    "GradScaler was given an empty GPipe; give one with a model");
  TORCH_CHECK_VALUE(is_factor(options.init_scale()), "GradScalerOptions::init_scale must be ",
                    kFactors, ", got ", options.init_scale());
  TORCH_CHECK_VALUE(options.growth_factor() > 1 && std::isfinite(options.growth_factor()),
                    "GradScalerOptions::growth_factor must be finite and above 1, got ",
                    options.growth_factor());
  TORCH_CHECK_VALUE(options.backoff_factor() > 0 && options.backoff_factor() < 1,
                    "GradScalerOptions::backoff_factor must be above 0 and below 1, got ",
                    options.backoff_factor());
  TORCH_CHECK_VALUE(options.growth_interval() >= 1,
                    "GradScalerOptions::growth_interval must be at least 1, got ",
                    options.growth_interval());
  state_.scale = static_cast<float>(options.init_scale());
}

bool GradScaler::unscale_() {
  if (!options_.enabled()) return true;
  TORCH_CHECK_VALUE(gradients_ == Gradients::kScaled,
                    "GradScaler::unscale_ was called a second time before update(): the gradients "
                    "have been divided already; call update() after each step()");
  gradients_ = pipe_->unscale_gradients_(state_.scale) ? Gradients::kFinite : Gradients::kNotFinite;
  return gradients_ == Gradients::kFinite;
}

bool GradScaler::unscale_others(const torch::optim::Optimizer* optimizer) {
  std::unordered_set<const c10::TensorImpl*> of_pipeline;
  for (const at::Tensor& parameter : pipe_->parameters()) {
    of_pipeline.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> others;
  if (optimizer != nullptr) {
    for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (of_pipeline.count(parameter.unsafeGetTensorImpl()) == 0) others.push_back(parameter);
      }
    }
  }
  const World& world = pipe_->world();
  return internal::in_call(world.processes().get(), [&] {
    return internal::unscale_gradients(others, state_.scale, world, "GradScaler::step");
  });
}

bool GradScaler::begin_step(const torch::optim::Optimizer* optimizer) {
  if (!options_.enabled()) return true;
  TORCH_CHECK_VALUE(!has_stepped_,
                    "GradScaler::step was called a second time before update(): call update() "
                    "after each step()");
  if (gradients_ == Gradients::kScaled) (void)unscale_();
  if (gradients_ == Gradients::kFinite && !unscale_others(optimizer)) {
    gradients_ = Gradients::kNotFinite;
  }
  has_stepped_ = true;
  return gradients_ != Gradients::kNotFinite;
}

void GradScaler::update() {
  if (!options_.enabled()) return;
  TORCH_CHECK_VALUE(has_stepped_ || gradients_ != Gradients::kScaled,
                    "GradScaler::update was called without a step() or unscale_() before it, so "
                    "that nothing is known of the gradients");
  // The new factor is what LibTorch's kernel computes: a float32, which does not grow if it would
  // be infinite.
  if (gradients_ == Gradients::kNotFinite) {
    const auto less = static_cast<float>(state_.scale * options_.backoff_factor());
    begin_anew();
    TORCH_CHECK_VALUE(is_factor(less), "the factor of the loss has fallen to ", state_.scale,
                      ", and the gradients are still not finite; StepOptions::check_finite(true) "
                      "names the layer that gives the first value that is not finite");
    state_ = {less, 0};
  } else if (++state_.growth_steps == options_.growth_interval()) {
    const auto grown = static_cast<float>(state_.scale * options_.growth_factor());
    if (std::isfinite(grown)) state_.scale = grown;
    state_.growth_steps = 0;
  }
  begin_anew();
}

void GradScaler::begin_anew() {
  gradients_ = Gradients::kScaled;
  has_stepped_ = false;
}

void GradScaler::load(const GradScalerState& state) {
  TORCH_CHECK_VALUE(is_factor(state.scale), "the state of a GradScaler has the scale ", state.scale,
                    ", which must be ", kFactors);
  TORCH_CHECK_VALUE(state.growth_steps >= 0, "the state of a GradScaler has ", state.growth_steps,
                    " growth_steps, which must be at least 0");
  state_ = {static_cast<float>(state.scale), state.growth_steps};
  begin_anew();
}

}  // namespace gpipe
