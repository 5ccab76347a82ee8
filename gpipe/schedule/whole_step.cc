#include "gpipe/schedule/whole_step.h"

#include <stdexcept>
#include <vector>

#include "gpipe/schedule/action.h"

namespace gpipe::internal {

void check_whole_step(const Schedule& schedule, const std::string& prefix) {
  bool forwards = false, backwards = false;
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      (action.kind == ActionKind::kForward ? forwards : backwards) = true;
    }
  }
  if (forwards && backwards) return;
  throw std::invalid_argument(prefix + "the schedule has no " +
                              (forwards ? "backwards" : "forwards") +
                              "; a step needs both; give a whole schedule");
}

}  // namespace gpipe::internal
