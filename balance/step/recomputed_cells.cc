#include "balance/step/recomputed_cells.h"

#include <cstddef>

#include "gpipe/schedule/follows_at_once.h"

namespace gpipe::balance {

std::vector<std::vector<bool>> recomputed_cells(const Schedule& schedule,
                                                const std::vector<Checkpoint>& modes) {
  std::vector<std::vector<bool>> result = follows_at_once(schedule);
  for (size_t j = 0; j < result.size(); ++j) {
    for (size_t m = 0; m < result[j].size(); ++m) {
      result[j][m] = modes.at(j) == Checkpoint::kAlways ||
                     (modes[j] == Checkpoint::kExceptLast && !result[j][m]);
    }
  }
  return result;
}

}  // namespace gpipe::balance
