#include "gpipe/runtime/run_lock.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/runtime/running_code.h"
#include "gpipe/runtime/warning_log.h"

namespace gpipe::internal {

std::atomic<std::chrono::milliseconds> RunLock::Part::patience{std::chrono::seconds(10)};

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
          "optimizer's step, a layer's save or load, a signal's handler), and would wait for "
          "itself; call it before or after");
    }
    const WaitScope wait;
    wait_for_mutex();
  }
  holder_ = std::this_thread::get_id();
  return Held(this);
}

void RunLock::Part::wait_for_mutex() {
  const std::chrono::milliseconds patience = RunLock::Part::patience;
  const std::chrono::milliseconds rest = patience - patience / 10;
  // The clock is that of pthread_mutex_timedlock(). ThreadSanitizer of gcc 12 does not see
  // pthread_mutex_clocklock(), which try_lock_for() calls.
  const auto try_lock_for = [this](std::chrono::milliseconds time) {
    return mutex_.try_lock_until(std::chrono::system_clock::now() + time);
  };
  if (try_lock_for(patience - rest)) return;
  const RunningCode::Moment moment = RunningCode::all_now();
  if (try_lock_for(rest)) return;
  const std::string code = RunningCode::unfinished(moment);
  if (!code.empty()) {
    log_warning(absl::StrCat(
        "a call of a pipeline waits for a call in another thread, in which ", code,
        " has not returned for ", std::chrono::duration<double>(rest).count(),
        " s. If it waits for the thread of this call, both will wait for ever: make the call after "
        "the step, or do not wait for that thread. If it is only slow, this call goes on when the "
        "other one is done"));
  }
  mutex_.lock();
}

void RunLock::Part::release() {
  holder_ = std::thread::id();
  mutex_.unlock();
}

}  // namespace gpipe::internal
