// derive_plan: what a step of a plan takes, by other code than the code that found the plan. A part
// of check_plan(); nothing here uses explain(), simulate() or the search.
#ifndef BALANCE_CHOOSE_PLAN_DERIVATION_H_
#define BALANCE_CHOOSE_PLAN_DERIVATION_H_

#include <cstdint>
#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "balance/costs/profile.h"
#include "balance/step/explain.h"

namespace gpipe::balance {

struct PlanDerivation {
  bool deadlock_free = false;  // no deadlock if sends never wait, as the runtime's do not
  double step = 0;             // seconds; 0 if it deadlocks
  double reload_wait = 0;      // seconds for which actions wait for what comes back from the host
  double offload_wait = 0;     // seconds by which they begin later because of what goes there
  std::vector<int64_t> live;   // [worker] the most bytes that its device holds at a time
};

// Arguments and errors are those of check_plan(). `plan` and `machine` are checked already.
PlanDerivation derive_plan(const PipelinePlan& plan, const Profile& profile,
                           const std::vector<double>& sizes, const ExplainOptions& machine);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_DERIVATION_H_
