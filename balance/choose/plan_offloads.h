// offloaded, offloaded_candidates: candidates of a search with offloads of activations to the host.
//
// Needs no LibTorch. Internal to //balance; balance/choose/plan.h is for users.
#ifndef BALANCE_CHOOSE_PLAN_OFFLOADS_H_
#define BALANCE_CHOOSE_PLAN_OFFLOADS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "balance/choose/plan_problem.h"
#include "balance/choose/plan_search.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// The candidate, whose own offloads are left out, with those that make its predicted memory lowest,
// if its step may be 1 + more_time times as long. With 0 no action waits for a copy. Behind it
// candidates that are faster, each with the lowest memory of those that are as fast. Empty if
// offloads lower nothing. `most`: [stage] as for with_offloads(); empty: any number of cells.
std::vector<PlanCandidate> offloaded(const PlanProblem& problem, const PlanCandidate& candidate,
                                     double more_time, const std::vector<int64_t>& most = {});

// [stage] How many cells of the schedule may be away at once so that no stage needs more than
// `limit` bytes of pinned memory. `pinned`: [stage] the bytes that the schedule's own offloads
// need.
std::vector<int64_t> cells_within(const Schedule& schedule, const std::vector<int64_t>& pinned,
                                  int64_t limit);

// Candidates whose offloads may fit where they themselves do not, each as offloaded() gives it:
// those of `search`, which had no limits, with their modes and with all cells recomputed, whose
// steps are shorter than `step` and whose predicted memory is not far above `limit` bytes on any
// device. The fastest come first, `most` at most; slower ones are not tried. Calls problem.progress
// before each.
std::vector<std::vector<PlanCandidate>> offloaded_candidates(const PlanProblem& problem,
                                                             const PlanSearch& search,
                                                             double more_time, double step,
                                                             int64_t limit, size_t most);

// The number of cells that go to the host.
int64_t offloaded_cells(const Schedule& schedule);

// What actions wait for the host where they do not wait, as a share of a step: errors of sums.
inline constexpr double kNoWait = 1e-9;

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_OFFLOADS_H_
