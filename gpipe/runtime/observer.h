// Observer: a callback that is called when each action of a running pipeline begins and ends.
#ifndef GPIPE_RUNTIME_OBSERVER_H_
#define GPIPE_RUNTIME_OBSERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>

#include "gpipe/schedule/action.h"

namespace gpipe {

struct Event {
  using Time = std::chrono::steady_clock::time_point;

  enum class Edge : uint8_t { kBegin, kEnd };
  Edge edge;
  Action action;
  int32_t worker;
  Time time;
  bool failed = false;  // with kEnd: whether the action threw
  // With kEnd of a backward: the time in which it recomputed the graphs of its checkpointed cells.
  // If both times are equal, it recomputed none.
  Time recompute_begin{};
  Time recompute_end{};
  // The run that the event belongs to: every step of this process has a number of its own, and a
  // later step has a larger number.
  int64_t run = 0;

  // Prints a text like "run 7, worker 1: F1.3 ends, failed". The text has no times, because times
  // count from an unknown moment.
  friend std::ostream& operator<<(std::ostream& out, const Event& event);
};

// Requirements: it is called on the worker that runs the action, by several workers at once, so it
// must be thread-safe and fast.
// Guarantees: kBegin is reported when the action's inputs have arrived, not while the worker waits
// for them. Each kBegin is followed by its kEnd, also if the action fails. If an observer throws,
// the run fails as if the action had thrown, and the action has no kEnd. All events of a run are
// reported before the run returns. Times are the host's: on an accelerator an action ends when its
// kernels have been given to the device.
using Observer = std::function<void(const Event&)>;

}  // namespace gpipe

#endif  // GPIPE_RUNTIME_OBSERVER_H_
