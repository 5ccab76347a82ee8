#include "gpipe/schedule/follows_at_once.h"

#include <cstddef>

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

}  // namespace gpipe
