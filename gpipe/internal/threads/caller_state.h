// CallerState: the thread-local state of a calling thread that its layers must find on the workers.
#ifndef GPIPE_INTERNAL_THREADS_CALLER_STATE_H_
#define GPIPE_INTERNAL_THREADS_CALLER_STATE_H_

#include <ATen/ThreadLocalState.h>

namespace gpipe::internal {

// Grad mode, inference mode, autocast with its dtypes, record-function callbacks and the rest, as
// they are on the thread that makes the object. A value type.
using CallerState = at::ThreadLocalState;

// Applies a state to this thread, and restores the previous one on exit.
using CallerStateScope = at::ThreadLocalStateGuard;

// While it lives, autocast casts every weight anew on this thread. Autocast's cache belongs to the
// process, and whoever leaves autocast on the calling thread empties it. With the cache, stages
// that run at the same time would take casts from each other's graphs, and a recompute outside the
// caller's autocast would leave casts of the current weights for a later forward.
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
