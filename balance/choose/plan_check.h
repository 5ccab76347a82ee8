// check_plan: what a plan says, computed again by other code than found it.
//
// Nothing here uses explain(), simulate() or the search: a mistake in one of them shows as a
// difference. What a name of a schedule means (balance/choose/profiled_schedule.h), what an
// allocator reserves (balance/memory/caching_allocator.h) and how rows are cut are the same code.
// It knows no LibTorch.
#ifndef BALANCE_CHOOSE_PLAN_CHECK_H_
#define BALANCE_CHOOSE_PLAN_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "balance/costs/profile.h"
#include "balance/memory/memory_trace.h"
#include "balance/step/explain.h"

namespace gpipe::balance {

struct PlanProof {
  bool deadlock_free = false;  // with sends that never wait, as the runtime's
  bool ascending = false;      // gradients are added up in the order of 1F1B: the same bits
  double step = 0;             // seconds; 0 if it deadlocks
  double lower_bound = 0;      // for the plan's micro-batches: step_lower_bound()
  // By device: the most that is live at a time, as the profile tells, and as the trace of the
  // memory plan does (empty without one).
  std::vector<int64_t> live;
  std::vector<int64_t> traced_live;
  // By device: what the allocator reserves for the trace, with no more than the device's limit (-1:
  // that is too little). Empty without one.
  std::vector<int64_t> reserved;
  // What differs from what the plan says, each beginning with the plan's field. Empty: it holds.
  std::vector<std::string> problems;
  // What the plan says and nothing here can derive: "model: a name for people".
  std::vector<std::string> not_checked;
};

// `sizes`: of the micro-batches, in units of the profile's rows. `machine` as in PlanProblem.
// `trace`: of the memory plan that Plan::devices are from, or null if they are from the profile.
//
// All that the plan says is derived again, or is in PlanProof::not_checked. Bytes of a profile may
// differ by one: they are rounded sums.
//
// Throws std::invalid_argument for a plan that is none (check_plan_value), for a balance that is
// not of the profile's layers, for another number of sizes than of micro-batches, and for times
// that are not finite (check_finite_step), and for a machine out of range (check_machine).
PlanProof check_plan(const PipelinePlan& plan, const Profile& profile,
                     const std::vector<double>& sizes, const ExplainOptions& machine,
                     const MemoryTrace* trace = nullptr);

// Seconds that no step of these micro-batches on so many devices can be shorter than, whatever the
// cut, the placement, the checkpoints and the schedule:
// - all work without recomputes, shared evenly, and before it each device but one waits for a
//   forward of the layers before its first one (with fewer cores than devices only the work);
// - a micro-batch through all layers, forward and back;
// - all work of the layer that has most.
// Throws std::invalid_argument without micro-batches or devices.
double step_lower_bound(const Profile& profile, const std::vector<double>& sizes, int64_t devices,
                        const ExplainOptions& machine);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_CHECK_H_
