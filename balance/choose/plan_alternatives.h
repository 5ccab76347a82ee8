// plan_alternatives: what one thing alone is worth in a plan. Needs no LibTorch; a part of
// search_plan().
#ifndef BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_
#define BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "balance/choose/plan_problem.h"
#include "balance/choose/plan_search.h"
#include "balance/cut/pieces.h"
#include "gpipe/checkpoint.h"

namespace gpipe::balance {

using PredictPlan =
    std::function<PlanCandidate(const PlanSetting& setting, const std::vector<int64_t>& balance,
                                const std::vector<Checkpoint>& modes)>;

// The best candidate with one thing replaced, for each thing. `found`: the best candidate of each
// setting, the best first. `predict` makes a candidate.
std::vector<PlanAlternative> plan_alternatives(const PlanProblem& problem, const Pieces& pieces,
                                               const std::vector<PlanCandidate>& found,
                                               const PredictPlan& predict);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_ALTERNATIVES_H_
