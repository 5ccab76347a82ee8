// The calls of a pipeline beside step(): forward() and evaluate().

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/call/bridge.h"
#include "gpipe/internal/call/caller_modes.h"
#include "gpipe/internal/call/reseed_watch.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe {

using internal::Packet;
using internal::Pass;

torch::Tensor GPipeImpl::forward(torch::Tensor input) {
  const bool needed = pipeline_ == nullptr || pipeline_->has_first_stage();
  TORCH_CHECK_VALUE(!needed || input.defined() || processes() != nullptr,
                    "forward was given an undefined tensor; give one whose dimension 0 is the "
                    "mini-batch");
  Tensors outputs =
      forward_all(input.defined() ? Tensors{std::move(input)} : Tensors(), /*one_output=*/true);
  return outputs.empty() ? at::Tensor() : std::move(outputs[0]);
}

Tensors GPipeImpl::forward(Tensors inputs) { return forward_all(inputs, /*one_output=*/false); }

Tensors GPipeImpl::forward_all(const Tensors& inputs, bool one_output) {
  internal::check_not_inside();
  TORCH_CHECK_VALUE(!inputs.empty() || processes() != nullptr,
                    "forward was given no input tensor; give at least one");
  if (!pipeline_) return inputs;
  const internal::WorkScope work;
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;  // kept alive, as in step()
  return internal::in_call(processes(), [&] { return run_forward(inputs, one_output); });
}

Tensors GPipeImpl::run_forward(const Tensors& inputs, bool one_output) {
  const bool record = c10::GradMode::is_enabled();
  TORCH_CHECK_VALUE(!record || processes() == nullptr,
                    "forward over several processes records no gradients: autograd's graph ends "
                    "with its process. Train with step(), which takes the loss function, and call "
                    "forward under torch::NoGradGuard");
  std::unique_ptr<Pass> pass = prepare("forward", inputs, record, nullptr);
  {
    const internal::ReseedWatch watch;
    pipeline_->run_forward(*pass);
  }
  Tensors outputs = outputs_of(*pass, inputs);
  const bool some = pipeline_->has_last_stage() && pass->micro_batches() > 0;
  TORCH_CHECK_VALUE(!one_output || !some || outputs.size() == 1, "the model gives ", outputs.size(),
                    " values; call forward with a std::vector<Tensor> to get them all");
  agree_on_end("forward");
  pipeline_->tied_over_processes().note_shared();
  if (!pipeline_->has_last_stage()) return {};
  std::vector<bool> needs_grad(outputs.size(), false);
  bool any = false;
  for (const Packet& packet : pass->outputs) {
    for (size_t n = 0; n < outputs.size(); ++n) {
      if (packet.items[n].needs_grad) needs_grad[n] = any = true;
    }
  }
  if (any) internal::attach_bridge(pipeline_, std::move(pass), inputs, outputs, needs_grad);
  return outputs;
}

StepResult GPipeImpl::evaluate(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                               const StepOptions& options) {
  internal::check_not_inside();
  TORCH_CHECK_VALUE(pipeline_ != nullptr, "evaluate needs a model with at least one layer");
  const internal::WorkScope work;
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;  // kept alive, as in step()
  return internal::in_call(processes(),
                           [&] { return run_evaluation(inputs, targets, loss_fn, options); });
}

StepResult GPipeImpl::run_evaluation(const Tensors& inputs, const Tensors& targets,
                                     const LossFn& loss_fn, const StepOptions& options) {
  const at::NoGradGuard no_grad;  // the workers take this over, too
  const std::unique_ptr<Pass> pass =
      prepare_losses(inputs, targets, loss_fn, options, /*backward=*/false);
  const Schedule schedule = schedule_of("evaluate", options, *pass);
  {
    const internal::ReseedWatch watch;
    pipeline_->run_evaluation(*pass, schedule, options.on_event(), options.check_finite());
  }
  return result_of("evaluate", *pass, inputs, options);
}

}  // namespace gpipe
