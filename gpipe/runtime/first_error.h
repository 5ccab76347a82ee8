// FirstError: keeps the first of the exceptions that several threads throw.
#ifndef GPIPE_RUNTIME_FIRST_ERROR_H_
#define GPIPE_RUNTIME_FIRST_ERROR_H_

#include <exception>
#include <utility>

#include "gpipe/runtime/mutex.h"

namespace gpipe::internal {

// Thread-safety: all functions are thread-safe.
//
// Example:
//   FirstError error;
//   on several threads: try { work(); } catch (...) { error.set(std::current_exception()); }
//   after joining them: error.rethrow();
class FirstError {
 public:
  // Keeps `error` if it is the first one; returns whether it was.
  bool set(std::exception_ptr error) {
    const MutexLock lock(mutex_);
    if (error_) return false;
    error_ = std::move(error);
    return true;
  }

  // Returns the first error and forgets it; null if there was none.
  std::exception_ptr take() {
    const MutexLock lock(mutex_);
    return std::exchange(error_, nullptr);
  }

  // Throws what take() returns, if that is not null.
  void rethrow() {
    if (const std::exception_ptr error = take()) std::rethrow_exception(error);
  }

 private:
  Mutex mutex_;
  std::exception_ptr error_ GPIPE_GUARDED_BY(mutex_);
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_FIRST_ERROR_H_
