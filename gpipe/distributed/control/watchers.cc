#include "gpipe/distributed/control/watchers.h"

#include <utility>

namespace gpipe::distributed {

Watchers::Place Watchers::add(std::function<void()> cancel) {
  const internal::MutexLock lock(mutex_);
  watchers_.push_front({std::move(cancel)});
  if (is_cancelled_) call(watchers_.front());
  return watchers_.begin();
}

void Watchers::remove(Place place) {
  const internal::MutexLock lock(mutex_);
  watchers_.erase(place);
}

void Watchers::cancel(uint32_t epoch) {
  const internal::MutexLock lock(mutex_);
  if (epoch != epoch_ || std::exchange(is_cancelled_, true)) return;
  for (Watcher& watcher : watchers_) call(watcher);
}

void Watchers::begin_epoch(uint32_t epoch) {
  const internal::MutexLock lock(mutex_);
  epoch_ = epoch;
  is_cancelled_ = false;
}

void Watchers::call(Watcher& watcher) {
  if (!std::exchange(watcher.is_called, true)) watcher.cancel();
}

}  // namespace gpipe::distributed
