#include "gpipe/schedule/sequential.h"

#include <utility>
#include <vector>

namespace gpipe {

Schedule sequential(int64_t stages, int64_t micro_batches) {
  (void)Schedule::create(stages, micro_batches, {});  // throws if they are out of range
  std::vector<Action> actions;
  actions.reserve(static_cast<size_t>(2 * stages * micro_batches));
  for (int32_t i = 0; i < micro_batches; ++i) {
    for (int32_t j = 0; j < stages; ++j) actions.push_back({ActionKind::kForward, j, i});
    for (auto j = static_cast<int32_t>(stages); j-- > 0;) {
      actions.push_back({ActionKind::kBackward, j, i});
    }
  }
  return Schedule::create(stages, micro_batches, {std::move(actions)});
}

}  // namespace gpipe
