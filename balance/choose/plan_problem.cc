#include "balance/choose/plan_problem.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "balance/costs/profile_checks.h"
#include "gpipe/schedule/named_schedule.h"

namespace gpipe::balance {
namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument("plan: " + text); }

bool allows_stages(const PlanProblem& problem, int64_t per_device) {
  return std::find(problem.stages_per_device.begin(), problem.stages_per_device.end(),
                   per_device) != problem.stages_per_device.end();
}

}  // namespace

ExplainOptions explain_options(const PlanProblem& problem, size_t chunking,
                               const Schedule& schedule, std::vector<Checkpoint> checkpoints) {
  ExplainOptions options = problem.machine;
  options.slowness.clear();  // all devices are alike
  options.chunks = schedule.micro_batches();
  options.micro_batch_sizes = problem.chunkings[chunking].sizes;
  options.partition_checkpoints = std::move(checkpoints);
  options.schedule = [schedule](int64_t, int64_t) { return schedule; };
  return options;
}

void check_plan_problem(const PlanProblem& problem) {
  if (problem.devices < 1) {
    fail("devices is " + std::to_string(problem.devices) + ", expected at least 1");
  }
  if (!problem.limits.empty() && static_cast<int64_t>(problem.limits.size()) != problem.devices) {
    fail("limits has " + std::to_string(problem.limits.size()) + " values, expected " +
         std::to_string(problem.devices) + ", one for each device");
  }
  if (problem.chunkings.empty()) fail("there are no numbers of micro-batches to choose from");
  const Profile& one = problem.chunkings.front().profile;
  for (const Chunking& chunking : problem.chunkings) {
    if (chunking.profile.deferred_batch_norm == one.deferred_batch_norm) continue;
    fail("of the profiles of micro-batches of " + std::to_string(one.batch_rows) + " and of " +
         std::to_string(chunking.profile.batch_rows) +
         " rows one was made with deferred batch norms; make all of them alike");
  }
  const Profile* first = nullptr;  // the first profile that names its autocast guard
  for (const Chunking& chunking : problem.chunkings) {
    if (!chunking.profile.autocast) continue;
    if (first == nullptr) first = &chunking.profile;
    if (*chunking.profile.autocast == *first->autocast) continue;
    fail("a profile of micro-batches of " + std::to_string(chunking.profile.batch_rows) +
         " rows was made " + under_autocast(*chunking.profile.autocast) + ", and one of " +
         std::to_string(first->batch_rows) + " rows " + under_autocast(*first->autocast) +
         "; make all of them under the same guard");
  }
  if (problem.checkpoints.empty()) fail("there are no checkpoint modes to choose from");
  if (problem.budget < 0) {
    fail("budget is " + std::to_string(problem.budget) + ", expected at least 0");
  }
  for (const int64_t stages : problem.stages_per_device) {
    if (stages < 1) fail("stages_per_device has " + std::to_string(stages) + "; give 1 or more");
  }
  for (const std::string& name : problem.schedules) {
    if (name != kSearchedOrder)
      (void)schedule_by_name(name);  // throws, and suggests what was meant
  }
  for (const Chunking& chunking : problem.chunkings) {
    if (chunking.sizes.empty()) {
      fail(absl::StrCat("the cut into ", chunking.chunks,
                        " chunks has no sizes; give one size for each of its micro-batches"));
    }
    check_profile(chunking.profile, "plan: the profile cannot have been measured: ");
    check_finite_step(chunking.profile, chunking.sizes, problem.machine, "plan: ");
  }
}

bool allows_schedule(const PlanProblem& problem, const std::string& name) {
  // By default Schedule::gpipe is left out, because it adds gradients in another order than all
  // other schedules.
  if (problem.schedules.empty()) return name != "gpipe";
  return std::find(problem.schedules.begin(), problem.schedules.end(), name) !=
         problem.schedules.end();
}

void for_each_schedule(const PlanProblem& problem,
                       const std::function<void(const std::string&, int64_t)>& visit) {
  for (const NamedSchedule& named : named_schedules()) {
    if (!allows_schedule(problem, named.name)) continue;
    switch (named.shape) {
      case PlacementShape::kOneEach:
        if (allows_stages(problem, 1)) visit(named.name, 1);
        break;
      case PlacementShape::kLoop:
        // With one stage on each device a loop equals a schedule of kOneEach, which is visited
        // anyway.
        for (const int64_t v : problem.stages_per_device) {
          if (v > 1) visit(named.name, v);
        }
        break;
      case PlacementShape::kVShape:
        if (allows_stages(problem, 2)) visit(named.name, 2);
        break;
      case PlacementShape::kOneWorker:
        break;  // 1F1B on one device is the same
    }
  }
}

std::string stages_that_schedules_have(const PlanProblem& problem, int64_t most) {
  std::string text;
  for (const NamedSchedule& named : named_schedules()) {
    if (!allows_schedule(problem, named.name)) continue;
    std::string have;
    if (named.shape == PlacementShape::kOneEach) have = "1";
    if (named.shape == PlacementShape::kVShape && most >= 2) have = "2";
    if (named.shape == PlacementShape::kLoop && most >= 2) {
      have = most == 2 ? "2" : "2 to " + std::to_string(most);
    }
    text += (text.empty() ? ": " : ", ") + named.name + " can have " +
            (have.empty() ? "none here" : have);
  }
  return text;
}

}  // namespace gpipe::balance
