// What an observer is told of a running pipeline: each action's begin and end.
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
};

// Called on the worker that runs the action, by several workers at once: it must be thread-safe and
// quick. Begin is reported when the action's inputs are there, not while it waits for them. An
// action that fails has a begin and no end. An exception thrown by an observer fails the run like
// one thrown by the action.
using Observer = std::function<void(const Event&)>;

}  // namespace gpipe

#endif  // GPIPE_RUNTIME_OBSERVER_H_
