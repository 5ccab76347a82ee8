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
    const Action* forward = nullptr;  // null unless the last action that computes is one
    for (const Action& action : actions) {
      const bool same_cell = forward != nullptr && action.stage == forward->stage &&
                             action.micro_batch == forward->micro_batch;
      // Other cells' memory may move in between.
      if (!computes(action.kind) && !same_cell) continue;
      if (same_cell && computes(action.kind)) {
        result[static_cast<size_t>(action.stage)][static_cast<size_t>(action.micro_batch)] = true;
      }
      forward = action.kind == ActionKind::kForward ? &action : nullptr;
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
