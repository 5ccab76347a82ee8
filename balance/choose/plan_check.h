// check_plan: derives what a plan says a second time, by other code than the code that found it.
//
// Nothing here uses explain(), simulate() or the search, so a mistake in one of them shows as a
// difference. Three things are shared with the search: what a schedule's name means
// (balance/choose/profiled_schedule.h), what an allocator reserves
// (balance/memory/caching_allocator.h) and how rows are cut. Needs no LibTorch.
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
  bool deadlock_free = false;  // no deadlock if sends never wait, as the runtime's do not
  bool ascending = false;      // gradients are added up in the order of 1F1B: the same bits
  double step = 0;             // seconds; 0 if it deadlocks
  // seconds for which actions wait for what comes back from the host
  double reload_wait = 0;
  // seconds by which actions begin later because what goes to the host before them is not there yet
  double offload_wait = 0;
  double lower_bound = 0;  // step_lower_bound() for the plan's micro-batches
  // [device] The most bytes that are live at a time, as the profile predicts and as the trace of
  // the memory plan shows (empty without a trace).
  std::vector<int64_t> live;
  std::vector<int64_t> traced_live;
  // [device] The bytes that the allocator reserves for the trace within the device's limit; -1 if
  // the limit is too small. Empty without a trace.
  std::vector<int64_t> reserved;
  // Differences from what the plan says; each begins with the field of the plan. Empty: the plan
  // holds.
  std::vector<std::string> problems;
  // What the plan says and nothing here can derive: "model: a name for people".
  std::vector<std::string> not_checked;
};

// `sizes`: the sizes of the micro-batches, in units of the profile's rows. `machine` as in
// PlanProblem. `trace`: from the memory plan that gave PipelinePlan::devices, or null if the
// devices' bytes come from the profile.
//
// Each statement of the plan is derived again, or is listed in PlanProof::not_checked. Bytes from a
// profile may differ by one, as they are rounded sums.
//
// Throws std::invalid_argument for a plan that is not valid (check_plan_value), for a balance that
// does not match the profile's layers, for a number of sizes that is not the number of
// micro-batches, for times that are not finite (check_finite_step), and for a machine out of range
// (check_machine).
PlanProof check_plan(const PipelinePlan& plan, const Profile& profile,
                     const std::vector<double>& sizes, const ExplainOptions& machine,
                     const MemoryTrace* trace = nullptr);

// A lower bound of the seconds of a step of these micro-batches on `devices` devices, for every
// cut, placement, checkpoint mode and schedule. It is the largest of
// - all work without recomputes, shared evenly, after each device has waited for one forward of the
//   layers before its first one (only the work, if there are fewer cores than devices);
// - a micro-batch's way through all layers, forward and back;
// - all work of the layer that has most.
// Throws std::invalid_argument without micro-batches or devices.
double step_lower_bound(const Profile& profile, const std::vector<double>& sizes, int64_t devices,
                        const ExplainOptions& machine);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_CHECK_H_
