// plan_search: the balance, placement, micro-batches, checkpoint modes and schedule with which a
// step is predicted to be shortest on given devices, all chosen together.
//
// It knows no LibTorch and measures nothing: what a choice costs says explain(). Internal to
// //balance; balance/choose/plan.h is for users, docs/design/planner.md says how it is searched.
#ifndef BALANCE_CHOOSE_PLAN_SEARCH_H_
#define BALANCE_CHOOSE_PLAN_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "balance/step/explain.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// A way to cut the mini-batch.
struct MiniBatchCut {
  int64_t chunks = 1;                 // as given to the pipeline
  std::vector<double> sizes = {1.0};  // of its micro-batches, in units of the profile's rows
  Profile profile;                    // of the first one
};

struct PlanProblem {
  int64_t devices = 1;  // alike; a worker each
  // Bytes of each device. Empty: no limits.
  std::vector<int64_t> limits;
  // To choose from. All profiles are of the same layers.
  std::vector<MiniBatchCut> cuts;
  std::vector<Checkpoint> checkpoints = {Checkpoint::kNever, Checkpoint::kExceptLast,
                                         Checkpoint::kAlways};
  // Names of schedule_by_name(), and "search". Empty: all that give the same bits, and "search".
  std::vector<std::string> schedules;
  // How many stages a device may have, for schedules in a loop.
  std::vector<int64_t> stages_per_device = {1, 2, 4};
  // The machine: bandwidth, latency, overhead, cores, contention, param_scale, keep_together. The
  // rest of it is not looked at.
  ExplainOptions machine;
  // How much is tried beyond cuts that are found at once, schedules by their names and what is
  // shown beside the choice. In simulated actions: not in time, so that the result is the same each
  // time. At most a fifth more is used. 0: enough for good cuts, some seconds.
  int64_t budget = 0;
  // Called now and then; what it throws ends the search.
  std::function<void(const std::string& note)> progress;
};

// A choice of everything, and what is predicted for it.
struct PlanCandidate {
  size_t cut = 0;      // of the problem's
  int64_t chunks = 1;  // its
  std::string schedule_name;
  int64_t stages_per_device = 1;
  std::vector<int64_t> balance;
  std::vector<Checkpoint> checkpoints;  // of each partition
  std::optional<Schedule> schedule;     // always there, if a candidate is
  double step = 0;                      // seconds
  std::vector<int64_t> memory;          // bytes of each device
  // The most bytes by which a device exceeds its limit; not above 0: it fits. Without limits minus
  // the most memory, so that of two steps that are as long the smaller one is better.
  int64_t excess = 0;

  bool fits() const { return excess <= 0; }
};

// The choice with one thing replaced.
struct PlanAlternative {
  std::string what;   // "chunks", "balance", "checkpoint", "schedule", "placement"
  std::string value;  // instead of the choice's
  PlanCandidate candidate;
};

struct PlanSearch {
  // The choice. If nothing fits, what exceeds its device least: fits() says which.
  PlanCandidate best;
  // The best of every other setting (micro-batches, schedule, stages on a device) that fits, the
  // fastest first.
  std::vector<PlanCandidate> others;
  std::vector<PlanAlternative> alternatives;
  int64_t examined = 0;     // predictions
  int64_t tried = 0;        // simulated actions, of what PlanProblem::budget is for
  bool exhaustive = false;  // every cut and every mode of every setting was examined
};

// Throws std::invalid_argument for a problem that makes no sense, with what to give: no devices,
// more than there are layers that may be separated, limits of another number, no cuts, no modes,
// names that are no schedules; and as explain() does.
PlanSearch search_plan(const PlanProblem& problem);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_SEARCH_H_
