// RecomputeTimer: takes the time of a recompute, if there is an observer.
#ifndef GPIPE_INTERNAL_CELL_RECOMPUTE_TIMER_H_
#define GPIPE_INTERNAL_CELL_RECOMPUTE_TIMER_H_

#include <chrono>
#include <cstdint>

#include "gpipe/internal/cell/run_context.h"

namespace gpipe::internal {

// A scope around a recompute. An action may have several recomputes, one after the other.
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

#endif  // GPIPE_INTERNAL_CELL_RECOMPUTE_TIMER_H_
