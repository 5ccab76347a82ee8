// What is watched about a recompute: whether it gives what its forward gave, by the fingerprints of
// both, and how long it takes.
#ifndef GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_
#define GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_

#include <c10/util/SmallVector.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "gpipe/internal/cell/fingerprint.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {

// The fingerprints of the outputs that require a gradient, in their order.
std::vector<Fingerprint> fingerprints_of(const c10::SmallVector<Value, 1>& outputs);

// Whether the recompute has given the values of the forward, as far as it is known at once. What
// only a device knows goes to run.late_checks.
bool is_same_recompute(const RunContext& run, int64_t stage, const std::vector<Fingerprint>& now,
                       const std::vector<Fingerprint>& in_forward);

// A scope around a recompute, whose time it takes if there is an observer. An action may have
// several recomputes, one after the other.
class RecomputeTimer {
 public:
  RecomputeTimer(const RunContext& run, int64_t stage)
      : time_(run.recomputes == nullptr ? nullptr : &(*run.recomputes)[stage]) {
    if (time_ != nullptr && time_->begin == time_->end) time_->begin = Clock::now();
  }
  ~RecomputeTimer() {
    if (time_ != nullptr) time_->end = Clock::now();
  }
  RecomputeTimer(const RecomputeTimer&) = delete;
  RecomputeTimer& operator=(const RecomputeTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  RecomputeTime* time_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_RECOMPUTE_CHECK_H_
