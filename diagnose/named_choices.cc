#include "diagnose/named_choices.h"

#include <algorithm>
#include <stdexcept>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/search_work.h"

namespace gpipe::diagnosis {
namespace {

bool has_its_stages_there(const NamedSchedule& named, const NamedScheduleOptions& options,
                          const Placement& placement) {
  try {
    return placement_by_name(named.name, placement.stages(), options).worker_of_stage() ==
           placement.worker_of_stage();
  } catch (const std::invalid_argument&) {  // the schedule does not exist for this number of stages
    return false;
  }
}

int64_t work_of(const NamedSchedule& named, const NamedScheduleOptions& options, int64_t stages,
                const std::set<int64_t>& micro_batches) {
  int64_t work = 0;
  for (const int64_t count : micro_batches) {
    work += internal::search_work(named.name, stages, count, options);
  }
  return work;
}

}  // namespace

std::vector<ScheduleChoice> named_choices(const Placement& placement,
                                          const std::set<int64_t>& micro_batches) {
  const int64_t per_worker = placement.stages() / placement.workers();
  std::vector<ScheduleChoice> result;
  for (const NamedSchedule& named : named_schedules()) {
    NamedScheduleOptions options;
    if (named.shape == PlacementShape::kLoop) {
      if (per_worker == 1) continue;
      options.stages_per_worker = per_worker;
    }
    // With one stage "sequential" is the same as 1F1B.
    if (named.shape == PlacementShape::kOneWorker && placement.stages() == 1) continue;
    if (!has_its_stages_there(named, options, placement)) continue;
    if (work_of(named, options, placement.stages(), micro_batches) > kMostSearchWork) continue;
    result.push_back({named.name, schedule_by_name(named.name, options)});
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const ScheduleChoice& choice) { return choice.name == "1f1b"; });
  return result;
}

}  // namespace gpipe::diagnosis
