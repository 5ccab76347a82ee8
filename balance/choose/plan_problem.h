// PlanProblem: what search_plan() chooses from, and on which machine. Needs no LibTorch.
//
// Internal to //balance; balance/choose/plan.h is for users.
#ifndef BALANCE_CHOOSE_PLAN_PROBLEM_H_
#define BALANCE_CHOOSE_PLAN_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/step/explain.h"
#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// A way to cut the mini-batch into chunks.
struct Chunking {
  int64_t chunks = 1;                 // as given to the pipeline
  std::vector<double> sizes = {1.0};  // sizes of its micro-batches, in units of the profile's rows
  Profile profile;                    // profile of its first micro-batch
};

struct PlanProblem {
  int64_t devices = 1;  // all alike, with one worker each
  // Bytes of each device. Empty: no limits.
  std::vector<int64_t> limits;
  // The ways to cut the mini-batch to choose from. All profiles must be of the same layers.
  std::vector<Chunking> chunkings;
  std::vector<Checkpoint> checkpoints = {Checkpoint::kNever, Checkpoint::kExceptLast,
                                         Checkpoint::kAlways};
  // Names of schedule_by_name(), and "search". Empty: "search" and all schedules that give the same
  // bits.
  std::vector<std::string> schedules;
  // The numbers of stages on a device to choose from.
  std::vector<int64_t> stages_per_device = {1, 2, 4};
  // The machine. Only bandwidth, latency, overhead, cores, contention, param_scale and
  // keep_together are used.
  ExplainOptions machine;
  // How much work, in simulated actions, the search may do beyond the cuts that it finds at once,
  // the named schedules and the alternatives that it reports. The unit is not seconds, so that the
  // result is the same each time. At most a fifth more is used. 0: enough for good cuts, some
  // seconds.
  int64_t budget = 0;
  // Called repeatedly. An exception that it throws ends the search.
  std::function<void(const std::string& note)> progress;
};

// What explain() is told of a candidate: a schedule for problem.chunkings[chunking], and the mode
// of each stage.
ExplainOptions explain_options(const PlanProblem& problem, size_t chunking,
                               const Schedule& schedule, std::vector<Checkpoint> checkpoints);

// The name in PlanProblem::schedules for orders that are searched.
inline constexpr char kSearchedOrder[] = "search";

// Throws std::invalid_argument, with what to give, for the errors of search_plan() that do not
// depend on where layers may be separated.
void check_plan_problem(const PlanProblem& problem);

// Whether the problem allows the schedule of this name, or kSearchedOrder.
bool allows_schedule(const PlanProblem& problem, const std::string& name);

// Calls `visit` for each named schedule that the problem allows, with each number of stages on a
// device that it may have.
void for_each_schedule(
    const PlanProblem& problem,
    const std::function<void(const std::string& name, int64_t per_device)>& visit);

// For a message: how many stages on a device each allowed schedule could have, if a device can have
// at most `most`. ": 1f1b can have 1, interleaved can have 2 to 4".
std::string stages_that_schedules_have(const PlanProblem& problem, int64_t most);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_PROBLEM_H_
