#include "gpipe/gpipe.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "gpipe/batch_size.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/call/call_agreement.h"
#include "gpipe/internal/call/caller_modes.h"
#include "gpipe/internal/call/model_checks.h"
#include "gpipe/internal/call/own_memory.h"
#include "gpipe/internal/call/placement_warning.h"
#include "gpipe/internal/call/reseed_watch.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/processes/call_terms.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/internal/run/make_pass.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/warning_log.h"

namespace gpipe {

using internal::Packet;
using internal::Pass;
using internal::ValueKind;

namespace {

// Whether the input is divided among the micro-batches. If it is the same for all of them, throws
// c10::ValueError if replicas would need its gradient.
bool is_divided(size_t number, const at::Tensor& input, const std::vector<int64_t>& shared,
                bool trains_replicas) {
  if (!is_shared(shared, number)) return true;
  TORCH_CHECK_VALUE(
      !trains_replicas || !input.requires_grad(), "input ", number,
      " is the same for all micro-batches (GPipeOptions::shared_inputs) and requires a gradient, "
      "of which each replica would get its own part; make it a parameter of the model");
  return false;
}

}  // namespace

std::string GPipeImpl::call_name(const char* what) const {
  return what + (" of pipeline " + std::to_string(number_));
}

std::unique_ptr<Pass> GPipeImpl::prepare(const char* what, const Tensors& inputs, bool needs_record,
                                         const StepOptions* options) const {
  check_layers();
  pipeline_->check_callable();
  internal::check_not_traced(what);
  internal::check_no_tangents("input", inputs);
  internal::check_no_tangents(layers_);
  TORCH_CHECK_VALUE(!on_meta_, what,
                    ": the model was built on meta, and its parameters have no "
                    "values yet; call materialize() before");
  if (world_.replicas() > 1 && !deferred_batch_norm_) {
    internal::check_no_running_statistics(named_children());
  }
  const bool first = pipeline_->has_first_stage();
  TORCH_CHECK_VALUE(
      !first || !inputs.empty(), what, " was given no input tensor",
      processes() == nullptr ? "" : "; this process has the first stage and needs it");
  bool some = first;  // whether this process can, or must, tell the number of rows
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].defined()) continue;
    TORCH_CHECK_VALUE(!first || inputs[k].device() == devices_.front(), "input ", k, " is on ",
                      inputs[k].device(), ", but the first partition is on ", devices_.front(),
                      "; move it there with .to()");
    TORCH_CHECK_VALUE(first || !needs_record || !inputs[k].requires_grad(), "input ", k,
                      " requires a gradient, but the first stage, where it would come from, is in "
                      "process ",
                      pipeline_->process_of_first_stage(), ": give it there, and here none");
    check_no_way_behind("input", k, inputs[k], needs_record);
    const bool trains_replicas = needs_record && world_.replicas() > 1;
    some = is_divided(k, inputs[k], shared_inputs_, trains_replicas) || some;
  }
  int64_t rows = some ? batch_size(inputs, "input", shared_inputs_) : -1;
  std::optional<uint64_t> seed;
  if (processes() != nullptr) {
    internal::CallTerms terms;
    terms.same.emplace_back("the mode", is_training() ? "training" : "evaluation");
    if (options != nullptr) internal::add_terms(*options, terms);
    terms.rows = rows;
    terms.seed = internal::draw_step_seed();
    terms.zero_grads = zero_grads_;
    terms.changed_tied_parameters = pipeline_->tied_over_processes().changed();
    terms.trained_tied_parameters = pipeline_->tied_over_processes().trained();
    const internal::CallBegin begin = internal::agree_at_begin(
        world_, call_name(what), terms, pipeline_->process_of_first_stage(), chunks_);
    rows = begin.rows;
    seed = begin.seed;
    if (needs_record) pipeline_->tied_over_processes().check_trained(begin.trained_tied_parameters);
    internal::agree_after_failed_update(world_, call_name(what), *pipeline_, *this);
    pipeline_->tied_over_processes().share(begin.changed_tied_parameters);
  }
  // Too many cells are refused here, before memory for them is allocated.
  const int64_t most = Schedule::kMostCells / pipeline_->stages();
  TORCH_CHECK_VALUE(std::min(rows, chunks_) <= most, "chunks(", chunks_, ") would cut the ", rows,
                    " rows into more than ", most, " micro-batches, the most for ",
                    pipeline_->stages(), " stages; give fewer chunks");
  internal::PassTerms terms;
  terms.mini_batch = internal::MiniBatch(rows, chunks_, world_.replica(), world_.replicas());
  terms.step_seed = seed ? *seed : internal::draw_step_seed();
  terms.record = needs_record;
  terms.checkpoints = partition_checkpoints_;
  if (!needs_record || !is_training()) {
    terms.checkpoints.assign(partition_checkpoints_.size(), Checkpoint::kNever);
  }
  if (first) {
    const ValueKind kind =
        input_kind_.value_or(inputs.size() == 1 ? ValueKind::kTensor : ValueKind::kTensors);
    // That the inputs fit what the first layer takes (a tensor, a list or a tuple) is checked once,
    // here on the caller's thread.
    terms.inputs = internal::shape_as(kind, inputs, "the model's first layer");
    terms.shared_inputs = shared_inputs_;
  }
  std::unique_ptr<Pass> pass = internal::make_pass(*pipeline_, std::move(terms));
  pass->plan.in_replicas = world_.replicas() > 1;
  pass->plan.first_micro_batch = chunks_ / world_.replicas() * world_.replica();
  if (options != nullptr && groups_ > 0) {
    pass->plan.group_size = chunks_ / groups_;
    pass->plan.groups_each = groups_ / world_.replicas();
  }
  pass->plan.defer_batch_norm = deferred_batch_norm_;
  return pass;
}

std::unique_ptr<Pass> GPipeImpl::prepare_losses(const Tensors& inputs, const Tensors& targets,
                                                const LossFn& loss_fn, const StepOptions& options,
                                                bool backward) const {
  const char* const what = backward ? "step" : "evaluate";
  TORCH_CHECK_VALUE(
      loss_fn != nullptr, what,
      " was given an empty loss function; give one that returns the loss of a micro-batch");
  internal::check_no_tangents("target", targets);
  std::unique_ptr<Pass> pass = prepare(what, inputs, backward, &options);
  const internal::WeightsOfAll weights_of_all = [&](const std::vector<double>& own) {
    return internal::weights_of_all(world_, call_name(what), own,
                                    pipeline_->process_of_last_stage());
  };
  if (pipeline_->has_last_stage()) {
    pass->loss.emplace(targets, devices_.back(), pass->mini_batch, loss_fn, options, backward,
                       world_.replicas() > 1 ? weights_of_all : nullptr);
  } else {
    if (world_.replicas() > 1) (void)weights_of_all({});
    for (const at::Tensor& target : targets) {
      TORCH_CHECK_VALUE(!backward || !target.defined() || !target.requires_grad(),
                        "a target requires a gradient, but the last stage, where it would come "
                        "from, is in process ",
                        pipeline_->process_of_last_stage(), ": give it there, and here none");
    }
  }
  for (size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].defined()) check_no_way_behind("target", k, targets[k], backward);
  }
  pass->keep_outputs = options.keep_outputs();
  return pass;
}

StepResult GPipeImpl::result_of(const char* what, Pass& pass, const Tensors& inputs,
                                const StepOptions& options) const {
  std::optional<internal::CallLosses> losses;
  if (pass.loss) {
    losses = {pass.loss->values(), pass.loss->shares()};
    if (std::isnan(internal::total_loss(losses->values, losses->shares))) {
      const std::string text = pass.loss->nan_text(losses->values);
      static std::atomic<bool> told{false};
      if (!text.empty() && !told.exchange(true)) internal::log_warning(text);
    }
  }
  pipeline_->check_late();
  StepResult result;
  if (options.keep_outputs()) result.outputs = outputs_of(pass, inputs);
  // Nothing may throw after agree_at_end(), because the other processes go on from there.
  if (processes() != nullptr) {
    losses =
        internal::agree_at_end(world_, call_name(what), losses, pipeline_->process_of_last_stage(),
                               pipeline_->late_registrations());
    pipeline_->tied_over_processes().note_shared();
  }
  result.loss = internal::total_loss(losses->values, losses->shares);
  result.losses = std::move(losses->values);
  return result;
}

// Returns the outputs in the process that has the last stage, and an empty list in the others.
Tensors GPipeImpl::outputs_of(const Pass& pass, const Tensors& inputs) const {
  if (!pipeline_->has_last_stage()) return {};
  Tensors outputs = pass.mini_batch.join(pass.outputs);
  if (pass.micro_batches() == 1) internal::own_memory(inputs, pass.plan.model, outputs);
  return outputs;
}

Schedule GPipeImpl::schedule_of(const char* what, const StepOptions& options,
                                const Pass& pass) const {
  // A replica without rows runs nothing, but takes part in comparing the schedule.
  const int64_t micro_batches = std::max<int64_t>(pass.micro_batches(), 1);
  if (!placement_ && processes() == nullptr) {
    Schedule schedule = options.schedule_for(pipeline_->stages(), micro_batches);
    internal::warn_without_placement(schedule, pipeline_->stages(), devices_.front().is_cpu());
    return schedule;
  }
  std::optional<Schedule> schedule;
  try {
    schedule = options.schedule_for(placement(), micro_batches);
  } catch (const std::invalid_argument& error) {
    // If the caller's generator itself throws, its exception is passed on unchanged.
    (void)options.schedule_for(pipeline_->stages(), micro_batches);
    TORCH_CHECK_VALUE(false, "the schedule does not fit GPipeOptions::placement: ", error.what());
  }
  if (processes() != nullptr && options.has_schedule()) {
    internal::agree_on_schedule(world_, call_name(what), *schedule);
  }
  return *std::move(schedule);
}

StepResult GPipeImpl::step(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                           const StepOptions& options) {
  internal::check_not_inside();
  TORCH_CHECK_VALUE(pipeline_ != nullptr, "step needs a model with at least one layer");
  const internal::WorkScope work;
  // A layer that calls exit() may destroy this module (if it is a static object, say). This pointer
  // keeps the pipeline alive, which is still running.
  const std::shared_ptr<internal::Pipeline> pipeline = pipeline_;
  return internal::in_call(processes(),
                           [&] { return run_step(inputs, targets, loss_fn, options); });
}

StepResult GPipeImpl::run_step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                               const StepOptions& options) {
  TORCH_CHECK_VALUE(
      c10::GradMode::is_enabled(),
      "step computes gradients, but gradients are switched off (torch::NoGradGuard, or inference "
      "mode); use forward, or evaluate for the loss alone");
  const std::unique_ptr<Pass> pass =
      prepare_losses(inputs, targets, loss_fn, options, /*backward=*/true);
  if (!is_training() && pipeline_->first_step_in_eval()) {
    internal::log_warning(
        "step() was called in evaluation mode (eval()): no dropout, no statistics of the batch, "
        "nothing is checkpointed. Call train() before, or evaluate() for a loss without gradients");
  }
  const internal::MiniBatch& mini_batch = pass->mini_batch;
  const Schedule schedule = schedule_of("step", options, *pass);
  {
    const internal::ReseedWatch watch;
    pipeline_->run_step(*pass, schedule, options.on_event(), options.check_finite());
  }
  internal::log_warning(pipeline_->unregistered_leaf_text());

  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  auto send_on = [&](const Tensors& tensors, const auto& joined) {
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (!tensors[k].defined() || !tensors[k].requires_grad()) continue;
      at::Tensor gradient = joined(k);
      if (!gradient.defined()) continue;
      roots.push_back(torch::autograd::impl::gradient_edge(tensors[k]));
      gradients.push_back(std::move(gradient));
    }
  };
  send_on(targets, [&](size_t k) { return mini_batch.join_gradients(pass->target_gradients, k); });
  send_on(inputs, [&](size_t k) { return pass->inputs.join_gradients(pass->input_gradients, k); });
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }

  return result_of("step", *pass, inputs, options);
}

}  // namespace gpipe
