#include "gpipe/timeline/timeline_dependencies.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

std::vector<std::vector<Action>> table_of(const StepTimeline& step) {
  std::vector<std::vector<Action>> table;
  for (const std::vector<TimelineAction>& actions : step.workers) {
    std::vector<Action>& row = table.emplace_back();
    for (const TimelineAction& timed : actions) row.push_back(timed.action);
  }
  return table;
}

// Returns one more than the largest `number` (stage or micro-batch) of the step's actions.
int64_t count(const StepTimeline& step, int32_t Action::*number) {
  int64_t result = 1;
  for (const std::vector<TimelineAction>& actions : step.workers) {
    for (const TimelineAction& timed : actions) {
      result = std::max<int64_t>(result, timed.action.*number + 1);
    }
  }
  return result;
}

Routes checked(const StepTimeline& step, const std::optional<Routes>& routes) {
  const int64_t stages = count(step, &Action::stage);
  if (!routes) return Routes::create(stages);
  if (routes->stages() >= stages) return *routes;
  throw std::invalid_argument("the routes are for " + std::to_string(routes->stages()) +
                              " stages, but the timeline has actions of stage " +
                              std::to_string(stages - 1) + "; give the routes of its pipeline");
}

}  // namespace

TimelineDependencies::TimelineDependencies(const StepTimeline& step,
                                           const std::optional<Routes>& routes)
    : step_(step),
      table_(table_of(step)),
      routes_(checked(step, routes)),
      dependencies_(routes_.stages(), count(step, &Action::micro_batch), table_, routes_) {}

}  // namespace gpipe::internal
