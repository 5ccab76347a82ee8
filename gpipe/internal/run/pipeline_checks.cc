#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <string>

#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/finite.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

// Throws for a parameter, or under `gradients` its .grad, that is not finite. Parameters of other
// processes are on meta, where all values count as finite.
void check_finite_parameters(const ModelState& model, const std::string& when, bool gradients) {
  for (const ModelState::Parameter& parameter : model.parameters()) {
    const std::string name = text::in_quotes(parameter.name) + " ";
    check_finite(parameter.tensor, "the parameter " + name + when);
    if (gradients) check_finite(parameter.tensor.grad(), "the gradient (.grad) of " + name + when);
  }
}

}  // namespace

void Pipeline::check_callable() {
  run_lock_.check_process();
  late_checks_.look();
  for (const Stage& stage : stages_) {
    for (const Layer& layer : stage.layers()) {
      if (layer.skips.empty()) continue;
      const std::optional<std::string> moved = layer.skips.moved_skip();
      TORCH_CHECK_VALUE(!moved, "isolate() was called on ", layer_text(layer), ", a ",
                        readable_type(layer.module),
                        ", after the pipeline was made, which reads the namespaces only then: ",
                        *moved, "; call isolate() before, or make a new pipeline");
    }
  }
}

void Pipeline::check_backward_thread() const {
  const bool on_cpu = std::all_of(stages_.begin(), stages_.end(),
                                  [](const Stage& stage) { return stage.device().is_cpu(); });
  TORCH_CHECK(
      on_cpu || c10::getThreadName().rfind("pt_autograd_", 0) != 0,
      "a pipeline's backward was called inside another backward, on autograd's own thread "
      "of a device (in a custom function or a hook). The stages' custom functions need that "
      "thread, and would wait for it forever. Call it outside, or from another thread that "
      "nobody waits for there");
}

void Pipeline::check_unchanged(Pass& pass) const {
  const std::optional<size_t> changed = pass.inputs.changed_by_caller();
  std::vector<bool> recomputing;
  for (const std::vector<Cell>& row : pass.cells) {
    recomputing.push_back(std::any_of(row.begin(), row.end(),
                                      [](const Cell& cell) { return cell.recompute.has_value(); }));
  }
  TORCH_CHECK(
      !changed || !recomputing.front(), "input ", changed.value_or(0),
      " of the pipeline was changed in place between forward and backward; the recompute of "
      "checkpointed micro-batches would start from the changed values and give wrong "
      "gradients. Change it after backward, give forward a clone(), or use "
      "Checkpoint::kNever");
  if (std::find(recomputing.begin(), recomputing.end(), true) == recomputing.end()) return;
  const bool on_cuda = std::any_of(stages_.begin(), stages_.end(),
                                   [](const Stage& stage) { return stage.device().is_cuda(); });
  const char* const setting = first_change(pass.settings, process_settings(), on_cuda);
  TORCH_CHECK(setting == nullptr, "what ", setting,
              " sets was changed between forward and backward; the recompute of checkpointed "
              "micro-batches would compute other values than their forward. Let what sets it "
              "(a guard, a `with`) last until backward has ended, or use Checkpoint::kNever");
  pass.plan.model.check_same(model_state(), recomputing);
}

void Pipeline::check_step(const Pass& pass, const Schedule& schedule, bool check_finite,
                          bool gradients) const {
  TORCH_CHECK_VALUE(pass.micro_batches() == 0 || schedule.micro_batches() == pass.micro_batches(),
                    "the schedule is for ", schedule.micro_batches(),
                    " micro-batches, but this mini-batch gives ", pass.micro_batches(),
                    "; give a ScheduleGenerator (Schedule::one_f_one_b, say) instead of a fixed "
                    "Schedule where batches vary");
  if (gradients) check_offloads(schedule);
  if (!check_finite) return;
  TORCH_CHECK_VALUE(graph_use().empty(),
                    "StepOptions::check_finite looks at each layer, but this pipeline launches "
                    "the kernels of its layers as a whole (GPipeOptions::graphs); make a pipeline "
                    "without graphs to find the layer");
  check_finite_parameters(pass.plan.model,
                          "before the step; was it loaded, or made by an "
                          "optimizer's step, from one that was not finite?",
                          gradients);
}

void Pipeline::check_offloads(const Schedule& schedule) const {
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      if (computes(action.kind)) continue;
      TORCH_CHECK_VALUE(
          graph_use().empty(),
          "the schedule has offloads, but this pipeline replays the kernels of its "
          "layers (GPipeOptions::graphs) in memory that must stay where it is; make a "
          "pipeline without graphs, or give without_offloads(schedule) "
          "(gpipe/schedule/offloads.h)");
      TORCH_CHECK_VALUE(
          action.stage >= stages() || !devices_[action.stage].is_cpu(),
          "the schedule has offloads of stage ", action.stage, ", whose device is ",
          devices_[action.stage],
          ": they bring memory of an accelerator to the host, and need one; give "
          "without_offloads(schedule) (gpipe/schedule/offloads.h; a plan's is plan.schedule)");
      TORCH_CHECK_VALUE(
          !ablation_.early_recomputes || action.stage + 1 != stages(),
          "the schedule has offloads of stage ", action.stage,
          ", the last one, which recomputes all micro-batches before its first backward "
          "(Ablation::early_recomputes), when the inputs of some are on the host; make a pipeline "
          "without early_recomputes, or give without_offloads(schedule) "
          "(gpipe/schedule/offloads.h)");
    }
  }
}

void Pipeline::check_after_step(const Pass& pass) {
  check_finite_parameters(pass.plan.model,
                          "after the step, although no term is: the sum is too "
                          "large for its type",
                          /*gradients=*/true);
}

void Pipeline::check_sums(const Pass& pass, Half half, const ProgramCache::Compiled& compiled) {
  TORCH_CHECK_VALUE(
      pass.plan.group_size == 0 || half == Half::kForward || compiled.sums_ascend,
      "GPipeOptions::groups, and replicas, need a schedule that adds up the gradients "
      "of micro-batches in their order, and this one does not: give one that is "
      "ascending (ScheduleFacts), as 1F1B and all generated schedules except Schedule::gpipe are "
      "(instead of that: \"fill-drain\" of schedule_by_name)");
}

std::string Pipeline::unregistered_leaf_text() {
  return unregistered_leaf_.take(
      [this](const at::Tensor& leaf) { return model_state().find(leaf) != nullptr; });
}

}  // namespace gpipe::internal
