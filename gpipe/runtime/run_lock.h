// RunLock: one run at a time, in the process that made the pipeline.
#ifndef GPIPE_RUNTIME_RUN_LOCK_H_
#define GPIPE_RUNTIME_RUN_LOCK_H_

#include <mutex>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/fork_guard.h"

namespace gpipe::internal {

// A mutex whose owner may be gone: the owner is in the parent of a forked child, or exit() blocks
// it forever. In these cases the lock throws instead of waiting.
//
// Example:
//   RunLock lock;
//   const RunLock::Scope scope(lock);
class RunLock {
 public:
  // Throws std::logic_error in a forked child.
  void check_process() const { fork_guard_.check(); }

  // Holds the lock while at work (exit_gate.h). Throws std::logic_error in a forked child, and in
  // the destructor of a static object that asks for a lock held by a blocked thread.
  class Scope {
   public:
    explicit Scope(RunLock& lock) : lock_(lock.acquire()) {}
    // A run may have made objects that exit() would otherwise destroy before it shuts the gate.
    ~Scope() { shut_at_exit(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::unique_lock<std::mutex> lock_;
    WorkScope work_;  // ends before the lock is released
  };

 private:
  std::unique_lock<std::mutex> acquire();

  ForkGuard fork_guard_;
  std::mutex mutex_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_RUN_LOCK_H_
