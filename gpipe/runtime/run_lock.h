// RunLock: one run at a time, in the process that made the pipeline.
#ifndef GPIPE_RUNTIME_RUN_LOCK_H_
#define GPIPE_RUNTIME_RUN_LOCK_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpipe/runtime/exit_gate.h"
#include "gpipe/runtime/fork_guard.h"

namespace gpipe::internal {

// A lock that throws instead of waiting if its owner is gone. That is so if the owner is in the
// parent of a forked child, or if exit() blocks it forever.
//
// A lock has one part or several, and is held if all of them are held. So locks that have a part in
// common exclude each other, and a new lock can exclude locks that existed before.
//
// Example:
//   RunLock lock;
//   const RunLock::Scope scope(lock);
class RunLock {
 public:
  class Part {
   public:
    // How long a thread waits before it logs which layer has not returned all the while. The thread
    // then goes on waiting.
    static std::atomic<std::chrono::milliseconds> patience;

    // Throws std::logic_error in a forked child.
    void check_process() const { fork_guard_.check(); }
    struct Release {
      void operator()(Part* part) const { part->release(); }
    };
    using Held = std::unique_ptr<Part, Release>;  // must not outlive the part
    // Throws as Scope does.
    Held acquire();

   private:
    void wait_for_mutex();
    void release();

    ForkGuard fork_guard_;
    std::timed_mutex mutex_;
    std::atomic<std::thread::id> holder_{};
  };
  using Parts = std::vector<std::shared_ptr<Part>>;

  // A lock with a part of its own.
  RunLock() : RunLock(Parts{std::make_shared<Part>()}) {}
  // `parts`: at least one part; a part may occur several times.
  explicit RunLock(Parts parts);

  // Throws std::logic_error in a forked child.
  void check_process() const;
  // Whether the locks exclude each other.
  bool excludes(const RunLock& other) const;

  // Holds the lock while at work (exit_gate.h). Throws std::logic_error in a forked child, in the
  // destructor of a static object that asks for a lock held by a blocked thread, and in a thread
  // that already holds the lock.
  class Scope {
   public:
    explicit Scope(RunLock& lock) : first_(lock.parts_.front()->acquire()) {
      for (size_t k = 1; k < lock.parts_.size(); ++k) others_.push_back(lock.parts_[k]->acquire());
    }
    // A run may have made objects at first use. exit() would destroy these before it shuts the gate
    // if its handler were not registered again.
    ~Scope() { shut_at_exit(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Part::Held first_;
    std::vector<Part::Held> others_;  // almost always empty
    WorkScope work_;                  // ends before the lock is released
  };

 private:
  Parts parts_;  // each part once, in the one order in which all locks take them
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_RUN_LOCK_H_
