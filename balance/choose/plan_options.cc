#include "balance/choose/plan_options.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/default_schedule.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {
namespace {

// The schedule without the actions of later micro-batches.
Schedule of_the_first(int64_t micro_batches, const Schedule& schedule) {
  std::vector<std::vector<Action>> workers = schedule.table();
  for (std::vector<Action>& actions : workers) {
    const auto is_later = [&](const Action& action) { return action.micro_batch >= micro_batches; };
    actions.erase(std::remove_if(actions.begin(), actions.end(), is_later), actions.end());
  }
  return Schedule::create(schedule.stages(), micro_batches, std::move(workers));
}

}  // namespace

GPipeOptions pipe_options(const PipelinePlan& plan, const std::vector<c10::Device>& devices) {
  check_plan_value(plan, "pipe_options: ");
  const Placement placement = plan.placement();
  GPipeOptions options(plan.balance);
  options.chunks(plan.chunks).partition_checkpoints(plan.checkpoints).placement(placement);
  options.shared_inputs(plan.shared_inputs).deferred_batch_norm(plan.deferred_batch_norm);
  if (devices.empty()) return options;
  if (static_cast<int64_t>(devices.size()) != placement.workers()) {
    throw std::invalid_argument("pipe_options: " + std::to_string(devices.size()) +
                                " devices were given, the plan has " +
                                std::to_string(placement.workers()) + "; give one for each");
  }
  std::vector<c10::Device> of_stages;
  for (const int64_t worker : placement.worker_of_stage()) {
    of_stages.push_back(devices[static_cast<size_t>(worker)]);
  }
  return options.devices(of_stages);
}

StepOptions step_options(const PipelinePlan& plan) {
  check_plan_value(plan, "step_options: ");
  return StepOptions().schedule([plan](int64_t stages, int64_t micro_batches) {
    const Placement placement = plan.placement();
    if (stages == plan.schedule.stages() && micro_batches == plan.schedule.micro_batches()) {
      return plan.schedule;
    }
    if (stages != placement.stages()) {
      throw std::invalid_argument("the plan is for " + std::to_string(placement.stages()) +
                                  " stages, but the pipeline has " + std::to_string(stages) +
                                  "; build it with pipe_options() of the same plan");
    }
    if (micro_batches < plan.schedule.micro_batches() &&
        plan.schedule != without_offloads(plan.schedule)) {
      return of_the_first(micro_batches, plan.schedule);
    }
    for (const NamedSchedule& named : named_schedules()) {
      if (named.name != plan.schedule_name) continue;
      NamedScheduleOptions options;
      if (named.shape == PlacementShape::kLoop) {
        options.stages_per_worker = stages / placement.workers();
      }
      const Schedule candidate = schedule_by_name(named.name, stages, micro_batches, options);
      if (candidate.placement() == placement) return candidate;
    }
    return default_schedule(placement, micro_batches);
  });
}

}  // namespace gpipe::balance
