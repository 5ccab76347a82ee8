#include "balance/choose/plan_alternatives.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_join.h"
#include "balance/choose/profiled_schedule.h"
#include "balance/step/cut_costs.h"
#include "gpipe/placement.h"

namespace gpipe::balance {
namespace {

bool same_placement(const Schedule& a, const Schedule& b) {
  return a.stages() == b.stages() && a.placement() == b.placement();
}

// Gives the setting its schedule for another number of micro-batches; returns false if there is no
// such schedule.
bool with_micro_batches(const PlanProblem& problem, const std::vector<PlanCandidate>& found,
                        PlanSetting& setting) {
  const auto m = static_cast<int64_t>(problem.chunkings[setting.cut].sizes.size());
  const int64_t stages = setting.schedule->stages();
  for (const PlanSetting& each : found) {
    if (each.cut == setting.cut && each.schedule_name == setting.schedule_name &&
        each.stages_per_device == setting.stages_per_device) {
      setting.schedule = each.schedule;
      return true;
    }
  }
  if (setting.schedule_name == kSearchedOrder || stages > Schedule::kMostCells / m) return false;
  if (problem.progress) problem.progress(setting.schedule_name);
  setting.schedule =
      profiled_schedule(setting.schedule_name, problem.devices, setting.stages_per_device, m,
                        problem.chunkings[setting.cut].profile, problem.machine);
  return true;
}

}  // namespace

std::vector<PlanAlternative> plan_alternatives(const PlanProblem& problem, const Pieces& pieces,
                                               const std::vector<PlanCandidate>& found,
                                               const PredictPlan& predict) {
  const PlanCandidate& best = found.front();
  std::vector<PlanAlternative> result;

  std::vector<int64_t> equal;
  const auto layers = static_cast<int64_t>(problem.chunkings.front().profile.layers.size());
  const int64_t stages = best.schedule->stages();
  for (int64_t j = 0; j < stages; ++j) {
    equal.push_back(layers * (j + 1) / stages - layers * j / stages);
  }
  const std::vector<int64_t> even = even_cut(problem.chunkings[best.cut].profile, stages,
                                             problem.machine.keep_together, /*recompute=*/false);
  if (equal != best.balance && pieces.allow(equal)) {
    result.push_back({"balance", "as many layers in each: " + absl::StrJoin(equal, ","),
                      predict(best, equal, best.checkpoints)});
  }
  if (even != best.balance && even != equal) {
    result.push_back({"balance", "the same time in each: " + absl::StrJoin(even, ","),
                      predict(best, even, best.checkpoints)});
  }
  for (size_t chunking = 0; chunking < problem.chunkings.size(); ++chunking) {
    if (chunking == best.cut) continue;
    PlanSetting other = best;
    other.cut = chunking;
    const std::string chunks = std::to_string(problem.chunkings[chunking].chunks);
    if (with_micro_batches(problem, found, other)) {
      result.push_back({"chunks", chunks, predict(other, best.balance, best.checkpoints)});
      continue;
    }
    // A searched order is for one number of micro-batches. So for another number the best found
    // setting with the same placement is taken instead.
    for (const PlanCandidate& each : found) {
      if (each.cut != chunking || !same_placement(*each.schedule, *best.schedule)) continue;
      result.push_back({"chunks", chunks + " (" + each.schedule_name + ")", each});
      break;
    }
  }
  for (const Checkpoint mode : problem.checkpoints) {
    const std::vector<Checkpoint> modes(static_cast<size_t>(stages), mode);
    if (modes == best.checkpoints) continue;
    result.push_back({"checkpoint", std::string(to_text(mode)) + " in all partitions",
                      predict(best, best.balance, modes)});
  }
  std::set<std::string> names = {best.schedule_name};
  std::set<std::vector<int64_t>> placements = {best.schedule->placement().worker_of_stage()};
  std::vector<PlanAlternative> elsewhere;
  for (const PlanCandidate& other : found) {
    if (other.cut != best.cut) continue;
    if (same_placement(*other.schedule, *best.schedule)) {
      if (!names.insert(other.schedule_name).second) continue;
      result.push_back(
          {"schedule", other.schedule_name, predict(other, best.balance, best.checkpoints)});
    } else if (placements.insert(other.schedule->placement().worker_of_stage()).second) {
      const bool v = other.schedule->placement() == Placement::v_shape(problem.devices);
      const std::string shape =
          other.stages_per_device == 1 ? "1 stage each"
          : v                          ? "2 stages each, in a V"
              : std::to_string(other.stages_per_device) + " stages each, in a loop";
      elsewhere.push_back({"placement", shape + " (" + other.schedule_name + ")", other});
    }
  }
  result.insert(result.end(), elsewhere.begin(), elsewhere.end());
  return result;
}

}  // namespace gpipe::balance
