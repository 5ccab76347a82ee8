#include "gpipe/runtime/run_lock.h"

#include <stdexcept>

namespace gpipe::internal {

std::unique_lock<std::mutex> RunLock::acquire() {
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
