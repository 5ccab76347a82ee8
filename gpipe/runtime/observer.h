// Observer: a callback that is told when each action of a running pipeline begins and ends.
#ifndef GPIPE_RUNTIME_OBSERVER_H_
#define GPIPE_RUNTIME_OBSERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "gpipe/schedule/action.h"

namespace gpipe {

struct Event {
  enum class Edge : uint8_t { kBegin, kEnd };
  Edge edge;
  Action action;
  int32_t worker;
  std::chrono::steady_clock::time_point time;
  bool failed = false;  // with kEnd: the action threw
};

// Requirements: it is called on the worker that runs the action, by several workers at once, so it
// must be thread-safe and fast.
//
// Guarantees: kBegin is reported when the action's inputs have arrived, not while it waits for
// them. Each is followed by its kEnd, also if the action fails. An exception thrown by an observer
// fails the run like one thrown by the action, which then has no kEnd.
using Observer = std::function<void(const Event&)>;

}  // namespace gpipe

#endif  // GPIPE_RUNTIME_OBSERVER_H_
