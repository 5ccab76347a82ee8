#include "gpipe/schedule/default_schedule.h"

#include <utility>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/sequential.h"

namespace gpipe {
namespace {

bool same_workers(const Placement& a, const Placement& b) {
  return a.worker_of_stage() == b.worker_of_stage();
}

}  // namespace

Schedule placed_fill_drain(const Schedule& one_each, const Placement& placement) {
  if (same_workers(placement, Placement::one_each(placement.stages()))) return one_each;
  std::vector<std::vector<Action>> workers;
  for (int64_t worker = 0; worker < placement.workers(); ++worker) {
    const std::vector<int64_t>& stages = placement.stages_of(worker);
    std::vector<Action> actions;
    for (const int64_t stage : stages) {
      for (const Action& action : one_each.actions(stage)) {
        if (action.kind == ActionKind::kForward) actions.push_back(action);
      }
    }
    // Backwards begin with the worker's last stage, because a stage needs gradients from the stage
    // after it.
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
      for (const Action& action : one_each.actions(*stage)) {
        if (action.kind != ActionKind::kForward) actions.push_back(action);
      }
    }
    workers.push_back(std::move(actions));
  }
  return Schedule::create(one_each.stages(), one_each.micro_batches(), std::move(workers));
}

Schedule fill_drain_on(const Placement& placement, int64_t micro_batches) {
  return placed_fill_drain(fill_drain(placement.stages(), micro_batches), placement);
}

Schedule default_schedule(const Placement& placement, int64_t micro_batches) {
  const int64_t stages = placement.stages(), workers = placement.workers();
  if (same_workers(placement, Placement::one_each(stages))) {
    return Schedule::one_f_one_b(stages, micro_batches);
  }
  if (workers == 1) return sequential(stages, micro_batches);
  if (stages % workers == 0) {
    const int64_t v = stages / workers;
    if (same_workers(placement, Placement::loop(workers, v))) {
      return interleaved(workers, v, micro_batches);
    }
    if (v == 2 && same_workers(placement, Placement::v_shape(workers))) {
      return dualpipe_v(workers, micro_batches);
    }
  }
  return fill_drain_on(placement, micro_batches);
}

}  // namespace gpipe
