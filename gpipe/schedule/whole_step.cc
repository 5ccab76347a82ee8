#include "gpipe/schedule/whole_step.h"

#include <stdexcept>
#include <vector>

#include "gpipe/schedule/action.h"

namespace gpipe::internal {

const char* missing_half(const Schedule& schedule) {
  bool forwards = false, backwards = false;
  for (const std::vector<Action>& actions : schedule.table()) {
    for (const Action& action : actions) {
      (action.kind == ActionKind::kForward ? forwards : backwards) = true;
    }
  }
  if (!forwards) return "forwards";
  return backwards ? nullptr : "backwards";
}

void check_whole_step(const Schedule& schedule, const std::string& prefix) {
  if (const char* const missing = missing_half(schedule)) {
    throw std::invalid_argument(prefix + "the schedule has no " + missing +
                                "; a step needs both; give a whole schedule");
  }
}

}  // namespace gpipe::internal
