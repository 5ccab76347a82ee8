// order_search: a plan's candidate as the search for an order of actions sees it. Needs no
// LibTorch.
#ifndef BALANCE_CHOOSE_ORDER_SEARCH_H_
#define BALANCE_CHOOSE_ORDER_SEARCH_H_

#include "balance/choose/plan_problem.h"
#include "balance/choose/plan_search.h"
#include "balance/step/explain.h"
#include "gpipe/schedule/search/search.h"

namespace gpipe::balance {

// Placement, micro-batches, costs, transfers and memory limits for gpipe::search(); its budget is
// not set. `explanation`: explain() of the candidate, whose schedule is set.
//
// The search takes all micro-batches of a stage to cost the same, so recomputes count for all
// micro-batches of a partition or for none.
SearchOptions order_search(const PlanProblem& problem, const PlanCandidate& candidate,
                           const Explanation& explanation);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_ORDER_SEARCH_H_
