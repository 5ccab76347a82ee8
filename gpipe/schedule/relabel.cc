#include "gpipe/schedule/relabel.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/schedule/simulate.h"

namespace gpipe {

std::optional<Schedule> relabeled(const Schedule& schedule) {
  const ScheduleFacts before = schedule.verify(Sends::kBuffered);
  if (before.ascending) return schedule;
  struct Count {
    int32_t forwards = 0;
    int32_t first_parts = 0;
    int32_t second_parts = 0;
  };
  std::vector<Count> counts(static_cast<size_t>(schedule.stages()));
  std::vector<std::vector<Action>> table = schedule.table();
  for (std::vector<Action>& actions : table) {
    for (Action& action : actions) {
      Count& count = counts[static_cast<size_t>(action.stage)];
      switch (action.kind) {
        case ActionKind::kForward:
          action.micro_batch = count.forwards++;
          break;
        case ActionKind::kInputGradient:
          action.micro_batch = count.first_parts++;
          break;
        case ActionKind::kWeightGradient:
          action.micro_batch = count.second_parts++;
          break;
        case ActionKind::kBackward:
          if (count.first_parts != count.second_parts) return std::nullopt;
          action.micro_batch = count.first_parts++;
          ++count.second_parts;
          break;
        case ActionKind::kOffload:
        case ActionKind::kReload:
          return std::nullopt;
      }
    }
  }
  Schedule result = Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
  try {
    ScheduleFacts after = result.verify(Sends::kBuffered);
    after.ascending = before.ascending;
    if (after != before) return std::nullopt;
  } catch (const std::invalid_argument&) {
    // The result deadlocks, or an action now comes before one that it needs.
    return std::nullopt;
  }
  const Simulation old_times = simulate(schedule);
  const Simulation new_times = simulate(result);
  for (size_t worker = 0; worker < old_times.workers.size(); ++worker) {
    for (size_t k = 0; k < old_times.workers[worker].size(); ++k) {
      if (old_times.workers[worker][k].start != new_times.workers[worker][k].start) {
        return std::nullopt;
      }
    }
  }
  return result;
}

}  // namespace gpipe
