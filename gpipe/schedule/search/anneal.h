// anneal: changes an order a little, again and again, to find a better one. Internal to
// gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_ANNEAL_H_
#define GPIPE_SCHEDULE_SEARCH_ANNEAL_H_

#include <cstdint>
#include <functional>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// A small random generator that draws the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // Draws a whole number from 0 to count - 1.
  int32_t below(size_t count) { return static_cast<int32_t>((next() >> 33) % count); }
  // Draws a number from 0 up to 1.
  double part() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

struct Annealing {
  uint64_t seed = 1;
  // The amount of work, in simulated actions.
  int64_t budget = 0;
  // The temperatures at the start and at the end: how much worse an accepted order may typically
  // be, in units of the mean time of an action.
  double hot = 0.5;
  double cold = 0.03;
  // `stop` is called now and then. If it returns true, annealing ends.
  std::function<bool()> stop;
  // Annealing ends when the objective has reached this value, because a smaller value is not worth
  // the work.
  double bound = 0.0;
  // Whether backwards may be joined and split.
  bool joins = true;
  // The objective that is minimized. It is called after a run of the order on the timing, and may
  // run the timing again. Empty: the makespan.
  std::function<double(Timing*, const Order&)> objective;
};

// Improves `order`, which must run and keep the limits, and returns its objective. The result is
// never worse than the given order. `timing` counts all work, including that of refused moves. All
// work together is at most `budget` and one more run.
double anneal(const Workload& workload, const Annealing& annealing, Timing* timing, Order* order);

// Whether the worker's list can be part of an order: each action comes after those of its cell that
// it needs, and the memory limit is kept.
bool keeps_limits(const Workload& workload, int32_t worker, const WorkerOrder& order);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_ANNEAL_H_
