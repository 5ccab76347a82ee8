// PlanSetting: what search_plan() settles before cut and checkpoint modes: micro-batches, schedule
// and placement. Needs no LibTorch. Internal to //balance.
#ifndef BALANCE_CHOOSE_PLAN_SETTING_H_
#define BALANCE_CHOOSE_PLAN_SETTING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "balance/choose/plan_problem.h"
#include "balance/choose/plan_search.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// The part of a candidate that does not depend on the cut and the modes.
struct PlanSetting {
  size_t cut = 0;
  std::string name;
  int64_t per_device = 1;
  Schedule schedule;
};

using FoundPlan = std::pair<PlanSetting, PlanCandidate>;

// The most even cut by sums of the layers' times, with each forward counted twice if `recompute`.
std::vector<int64_t> even_cut(const PlanProblem& problem, const PlanSetting& setting,
                              bool recompute);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_SETTING_H_
