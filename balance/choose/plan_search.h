// plan_search: the balance, placement, micro-batches, checkpoint modes and schedule with which a
// step is predicted to be shortest on given devices, all chosen together.
//
// Needs no LibTorch and measures nothing: explain() predicts the cost of each choice. Internal to
// //balance; balance/choose/plan.h is for users, docs/design/planner.md explains the search.
#ifndef BALANCE_CHOOSE_PLAN_SEARCH_H_
#define BALANCE_CHOOSE_PLAN_SEARCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "balance/choose/plan_problem.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// What is settled before cut and checkpoint modes: micro-batches, schedule and placement.
struct PlanSetting {
  size_t cut = 0;  // index in PlanProblem::chunkings
  std::string schedule_name;
  int64_t stages_per_device = 1;
  std::optional<Schedule> schedule;  // always set in what the search returns
};

// One choice of everything, and its predictions.
struct PlanCandidate : PlanSetting {
  int64_t chunks = 1;  // those of its Chunking
  std::vector<int64_t> balance;
  std::vector<Checkpoint> checkpoints;  // one for each partition
  double step = 0;                      // seconds
  std::vector<int64_t> memory;          // bytes of each device
  // The most bytes by which a device exceeds its limit; the candidate fits if it is not above 0.
  // Without limits the value grows with the most memory of a device, so that of two equally fast
  // candidates the smaller one is better.
  int64_t excess = 0;

  bool fits() const { return excess <= 0; }
};

// The best candidate with one thing replaced.
struct PlanAlternative {
  std::string what;   // "chunks", "balance", "checkpoint", "schedule", "placement"
  std::string value;  // the value that replaces the best candidate's
  PlanCandidate candidate;
};

struct PlanSearch {
  // The choice. If nothing fits (fits() is false), the candidate that exceeds its devices least.
  PlanCandidate best;
  // The best candidate of every other setting (micro-batches, schedule, stages on a device) that
  // fits, the fastest first.
  std::vector<PlanCandidate> others;
  std::vector<PlanAlternative> alternatives;
  int64_t examined = 0;     // number of predictions
  int64_t tried = 0;        // the simulated actions that PlanProblem::budget limits
  bool exhaustive = false;  // every cut and every mode of every setting was examined
};

// Throws std::invalid_argument, with what to give, for no devices, more devices than layers that
// may be separated, a number of limits that is not the number of devices, no chunkings, no modes,
// and names that are not schedules; and as explain() does.
PlanSearch search_plan(const PlanProblem& problem);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_SEARCH_H_
