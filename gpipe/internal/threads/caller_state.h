// CallerState: the thread-local state of a calling thread that its layers must find on the workers.
#ifndef GPIPE_INTERNAL_THREADS_CALLER_STATE_H_
#define GPIPE_INTERNAL_THREADS_CALLER_STATE_H_

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>

#include <optional>

#include "gpipe/internal/threads/float_mode.h"

namespace gpipe::internal {

// The state consists of grad mode, inference mode, autocast with its dtypes, record-function
// callbacks and the rest of at::ThreadLocalState. It also has what at::ThreadLocalState leaves out:
// the floating-point mode, at::NoTF32Guard, and whether TorchScript's executors optimize. All are
// taken from the thread that makes the object (docs/design/thread_state.md). A value type.
class CallerState {
 public:
  CallerState();

  const FloatMode& floats() const { return floats_; }

 private:
  friend class CallerStateScope;

  at::ThreadLocalState state_;
  FloatMode floats_;
  bool without_tf32_;
  bool optimizes_scripts_;
};

// Applies a state to this thread, and restores the previous one on exit.
class CallerStateScope {
 public:
  explicit CallerStateScope(const CallerState& state);
  ~CallerStateScope();
  CallerStateScope(const CallerStateScope&) = delete;
  CallerStateScope& operator=(const CallerStateScope&) = delete;

 private:
  const at::ThreadLocalStateGuard state_;
  const FloatModeScope floats_;
  std::optional<at::NoTF32Guard> without_tf32_;
  const bool optimized_scripts_;
};

// While the scope lives, autocast casts every weight anew on this thread. Autocast's cache belongs
// to the process, and code that leaves autocast on the calling thread empties it. With the cache,
// stages that run at the same time would take casts from each other's graphs, and a recompute
// outside the caller's autocast would leave casts of the current weights for a later forward.
//
// Under an InterceptionScope, a layer that switches the cache on and casts a weight under it gets a
// c10::Error that says so.
class AutocastCacheOff {
 public:
  AutocastCacheOff();
  ~AutocastCacheOff();
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_CALLER_STATE_H_
