// TimelineDependencies: which actions of a step waited for which other actions.
#ifndef GPIPE_TIMELINE_TIMELINE_DEPENDENCIES_H_
#define GPIPE_TIMELINE_TIMELINE_DEPENDENCIES_H_

#include <optional>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/dependencies.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe::internal {

// Requirements: `step` outlives the object. The object can be neither moved nor copied, because it
// refers to itself.
class TimelineDependencies {
 public:
  // Without routes, the routes of the chain of activations and gradients are used. Throws
  // std::invalid_argument for routes that do not reach all stages.
  TimelineDependencies(const StepTimeline& step, const std::optional<Routes>& routes);
  TimelineDependencies(const TimelineDependencies&) = delete;
  TimelineDependencies& operator=(const TimelineDependencies&) = delete;

  const Routes& routes() const { return routes_; }
  // The actions for which `action` waited, as far as these ran.
  std::vector<Dependencies::Edge> needs(const Action& action) const {
    return dependencies_.needs(action);
  }
  const TimelineAction& at(const Position& position) const {
    return step_.workers[static_cast<size_t>(position.worker)][static_cast<size_t>(position.index)];
  }

 private:
  const StepTimeline& step_;
  const std::vector<std::vector<Action>> table_;
  const Routes routes_;
  const Dependencies dependencies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_TIMELINE_TIMELINE_DEPENDENCIES_H_
