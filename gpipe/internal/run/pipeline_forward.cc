// The runs of Pipeline that are not a step: a forward, the backward that follows it later, and an
// evaluation.
#include <algorithm>
#include <utility>

#include "gpipe/internal/run/pipeline.h"
#include "gpipe/schedule/default_schedule.h"

namespace gpipe::internal {

Schedule Pipeline::fill_drain(int64_t micro_batches) const {
  return placed_fill_drain(Schedule::gpipe(stages(), micro_batches), placement_);
}

void Pipeline::run_forward(Pass& pass) {
  const RunLock::Scope scope(run_lock_);
  tied_over_devices_.refresh(transfers_);
  // The state is also needed for a single micro-batch, whose outputs may be the model's own memory
  // (own_memory.h).
  if (pass.plan.record || pass.micro_batches() == 1) pass.plan.model = model_state();
  if (pass.plan.record) pass.settings = process_settings();
  run(pass, fill_drain(std::max<int64_t>(pass.micro_batches(), 1)), Half::kForward, nullptr,
      nullptr);
  if (pass.plan.record) {
    // A layer may have registered a parameter or a buffer in its first forward.
    pass.plan.model = model_state();
    take_what_operators_set(pass.settings);
  }
  commit_statistics(pass);
}

std::vector<Packet> Pipeline::run_backward(Pass& pass, BackwardRequest& request) {
  check_callable();
  check_backward_thread();
  const RunLock::Scope scope(run_lock_);
  check_unchanged(pass);
  TiedOverProcesses::note_gradients();
  run(pass, fill_drain(pass.micro_batches()), Half::kBackward, &request, nullptr);
  return std::exchange(pass.input_gradients, std::vector<Packet>(pass.micro_batches()));
}

void Pipeline::run_evaluation(Pass& pass, const Schedule& schedule, const Observer& observer,
                              bool check_finite) {
  const RunLock::Scope scope(run_lock_);
  tied_over_devices_.refresh(transfers_);
  pass.plan.model = model_state();
  check_step(pass, schedule, check_finite, /*gradients=*/false);
  run(pass, schedule, Half::kForward, nullptr, observer, check_finite);
  commit_statistics(pass);
}

}  // namespace gpipe::internal
