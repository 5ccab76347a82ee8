#include "gpipe/schedule/follows_at_once.h"

#include <cstddef>
#include <stdexcept>

#include "gpipe/schedule/action.h"

namespace gpipe {

std::vector<std::vector<bool>> follows_at_once(const Schedule& schedule) {
  std::vector<std::vector<bool>> result(
      static_cast<size_t>(schedule.stages()),
      std::vector<bool>(static_cast<size_t>(schedule.micro_batches())));
  for (const std::vector<Action>& actions : schedule.table()) {
    for (size_t k = 0; k + 1 < actions.size(); ++k) {
      const Action& action = actions[k];
      if (action.kind == ActionKind::kForward && actions[k + 1].stage == action.stage &&
          actions[k + 1].micro_batch == action.micro_batch) {
        result[static_cast<size_t>(action.stage)][static_cast<size_t>(action.micro_batch)] = true;
      }
    }
  }
  return result;
}

namespace internal {

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

}  // namespace internal
}  // namespace gpipe
