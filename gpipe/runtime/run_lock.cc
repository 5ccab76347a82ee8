#include "gpipe/runtime/run_lock.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gpipe::internal {

RunLock::RunLock(Parts parts) : parts_(std::move(parts)) {
  std::sort(parts_.begin(), parts_.end());
  parts_.erase(std::unique(parts_.begin(), parts_.end()), parts_.end());
}

void RunLock::check_process() const {
  for (const std::shared_ptr<Part>& part : parts_) part->check_process();
}

bool RunLock::excludes(const RunLock& other) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const std::shared_ptr<Part>& part) {
    return std::find(other.parts_.begin(), other.parts_.end(), part) != other.parts_.end();
  });
}

RunLock::Part::Held RunLock::Part::acquire() {
  check_process();
  if (on_exiting_thread()) {
    if (holder_ == std::this_thread::get_id() || !mutex_.try_lock()) {
      throw std::logic_error(
          "a pipeline was called while the process ends (exit() or the return from main), but "
          "a call of it was under way then and will not finish; let the threads that use a "
          "pipeline end before exit()");
    }
  } else {
    if (holder_ == std::this_thread::get_id()) {
      throw std::logic_error(
          "a pipeline was called by what another call of it runs (materialize's function, an "
          "optimizer's step, a layer's save or load), and would wait for itself; call it before or "
          "after");
    }
    const WaitScope wait;
    mutex_.lock();
  }
  holder_ = std::this_thread::get_id();
  return Held(this);
}

void RunLock::Part::release() {
  holder_ = std::thread::id();
  mutex_.unlock();
}

}  // namespace gpipe::internal
