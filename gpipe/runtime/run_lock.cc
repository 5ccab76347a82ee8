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

std::unique_lock<std::mutex> RunLock::Part::acquire() {
  check_process();
  if (on_exiting_thread()) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) return lock;
    throw std::logic_error(
        "a pipeline was called while the process ends (exit() or the return from main), but "
        "a call of it was under way then and will not finish; let the threads that use a "
        "pipeline end before exit()");
  }
  const WaitScope wait;
  return std::unique_lock<std::mutex>(mutex_);
}

}  // namespace gpipe::internal
