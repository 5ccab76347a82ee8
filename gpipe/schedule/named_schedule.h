// schedule_by_name: finds the known schedules by their names, for command lines and settings.
#ifndef GPIPE_SCHEDULE_NAMED_SCHEDULE_H_
#define GPIPE_SCHEDULE_NAMED_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe {

enum class PlacementShape : uint8_t { kOneEach, kLoop, kVShape, kOneWorker };

struct NamedSchedule {
  std::string name;
  std::string summary;  // one line for --help
  PlacementShape shape = PlacementShape::kOneEach;
  bool split = false;  // whether it splits backwards
};

// All known schedules, the plain ones first.
const std::vector<NamedSchedule>& named_schedules();
// The names as text, "gpipe, 1f1b, ...", for --help and messages.
std::string schedule_names();

struct NamedScheduleOptions {
  // How many stages each worker has. 0 means the schedule's default, which is 2 for loops and Vs
  // and 1 otherwise. Only loops can have other numbers.
  int64_t stages_per_worker = 0;
  // The costs for which schedules that depend on costs are made.
  GeneratorCosts costs;
};

// A generator for StepOptions::schedule() and the like. `stages` is the number of all stages, so a
// schedule with v stages a worker has stages / v workers. Throws std::invalid_argument for an
// unknown name (the message suggests the one that was probably meant, and lists all), for stages
// per worker that the schedule cannot have, and for costs that are negative or not finite, whether
// the schedule depends on them or not. The generator throws std::invalid_argument for a number of
// stages that is not a multiple of the stages per worker (the message names the nearest multiples),
// and for counts below 1.
//
// Example:
//   pipe->step({input}, {target}, loss_fn, StepOptions().schedule(schedule_by_name("zb-h1")));
ScheduleGenerator schedule_by_name(std::string_view name, const NamedScheduleOptions& options = {});
Schedule schedule_by_name(std::string_view name, int64_t stages, int64_t micro_batches,
                          const NamedScheduleOptions& options = {});

// The placement for which the schedule is made. Throws as schedule_by_name() does.
Placement placement_by_name(std::string_view name, int64_t stages,
                            const NamedScheduleOptions& options = {});

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_NAMED_SCHEDULE_H_
