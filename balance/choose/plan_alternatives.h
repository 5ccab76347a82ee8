// plan_alternatives: what one thing alone is worth in a plan. Needs no LibTorch; a part of
// search_plan().
#ifndef BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_
#define BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "balance/choose/plan_problem.h"
#include "balance/choose/plan_search.h"
#include "balance/cut/pieces.h"
#include "gpipe/checkpoint.h"
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

using PredictPlan =
    std::function<PlanCandidate(const PlanSetting& setting, const std::vector<int64_t>& balance,
                                const std::vector<Checkpoint>& modes)>;

// The most even cut by sums of the layers' times, with each forward counted twice if `recompute`.
std::vector<int64_t> even_cut(const PlanProblem& problem, const PlanSetting& setting,
                              bool recompute);

// The best candidate with one thing replaced, for each thing. `found`: the best candidate of each
// setting, the best first; `best` is the first of them. `predict` makes a candidate.
std::vector<PlanAlternative> plan_alternatives(const PlanProblem& problem, const Pieces& pieces,
                                               const std::vector<FoundPlan>& found,
                                               const PlanCandidate& best,
                                               const PredictPlan& predict);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_
