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

std::optional<int64_t> StatisticsUse::stage_of(const at::Tensor& tensor) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = uses_.find(storage_of(tensor));
  if (found == uses_.end() || storage_of(found->second.tensor) != found->first) return std::nullopt;
  return found->second.stage;
}

int64_t StatisticsUse::note(int64_t stage, const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Use& use = uses_.try_emplace(storage_of(tensor), Use{tensor, stage}).first->second;
  if (storage_of(use.tensor) != storage_of(tensor)) use = {tensor, stage};
  if (use.stage != stage) use.stage = kSeveral;
  return use.stage;
}

}  // namespace gpipe::internal
