#include "gpipe/internal/operators/statistics_use.h"

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {

void StatisticsUse::forget_freed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::erase_if(uses_, [](const auto& entry) {
    const Use& use = entry.second;
    return use.tensor.use_count() == 1 || storage_of(use.tensor) != entry.first;
  });
}

int64_t StatisticsUse::note(int64_t stage, const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Use& use = uses_.try_emplace(storage_of(tensor), Use{tensor, stage}).first->second;
  if (storage_of(use.tensor) != storage_of(tensor)) use = {tensor, stage};
  if (use.stage != stage) use.stage = kSeveral;
  return use.stage;
}

}  // namespace gpipe::internal
