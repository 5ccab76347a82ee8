// Watchers: functions that cancel work when something fails.
#ifndef GPIPE_DISTRIBUTED_CONTROL_WATCHERS_H_
#define GPIPE_DISTRIBUTED_CONTROL_WATCHERS_H_

#include <cstdint>
#include <functional>
#include <list>

#include "gpipe/runtime/mutex.h"

namespace gpipe::distributed {

// Thread-safe. A function that is added must not block, nor use this object.
//
// Guarantees: each function is called at most once. When cancel() or add() returns, the functions
// that it had to call have been called. When remove() returns, the function is not running and is
// not called any more.
class Watchers {
 private:
  struct Watcher {
    std::function<void()> cancel;
    bool is_called = false;
  };

 public:
  using Place = std::list<Watcher>::iterator;

  // If this epoch has been canceled, calls the function immediately.
  Place add(std::function<void()> cancel);
  void remove(Place place);

  // Something in `epoch` has failed. Without effect if a later epoch has begun.
  void cancel(uint32_t epoch);
  // The functions that were added stay.
  void begin_epoch(uint32_t epoch);

 private:
  static void call(Watcher& watcher);

  internal::Mutex mutex_;
  std::list<Watcher> watchers_ GPIPE_GUARDED_BY(mutex_);
  uint32_t epoch_ GPIPE_GUARDED_BY(mutex_) = 0;
  bool is_cancelled_ GPIPE_GUARDED_BY(mutex_) = false;  // this epoch
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_WATCHERS_H_
