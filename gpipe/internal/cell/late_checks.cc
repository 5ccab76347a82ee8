#include "gpipe/internal/cell/late_checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {

void LateChecks::add(int64_t stage, const at::Tensor& differs, Transfers& transfers) {
  Check check;
  check.stage = stage;
  Item item;
  item.tensor = differs;
  check.answer.items.push_back(std::move(item));
  transfers.depart(check.answer, c10::kCPU);
  std::lock_guard<std::mutex> lock(mutex_);
  checks_.push_back(std::move(check));
}

void LateChecks::look() {
  int64_t failed = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto check = checks_.begin(); check != checks_.end();) {
      const auto& ready = check->answer.ready;
      if (!std::all_of(ready.begin(), ready.end(),
                       [](const auto& event) { return event->query(); })) {
        ++check;
        continue;
      }
      if (check->answer.items[0].tensor.item<bool>()) failed = check->stage;
      check = checks_.erase(check);
    }
  }
  if (failed >= 0) refuse_recompute(failed, ", in a call before this one,");
}

void refuse_recompute(int64_t stage, const char* when) {
  TORCH_CHECK(
      false, "the recompute of stage ", stage, when,
      " gave other values than its forward, so its gradients would be those of another function: a "
      "layer depends on something that has changed since (a state that it keeps in a member or a "
      "buffer, random numbers that LibTorch does not draw, a tensor that is not a parameter), or "
      "parameters were changed "
      "between forward and backward through data(), as optimizers do. Make its output depend on "
      "its input and parameters alone, or use Checkpoint::kNever for this partition");
}

}  // namespace gpipe::internal
