// Mutex, MutexLock, MutexUnlock and Condition: the classes of the standard library, with
// annotations that clang's thread-safety analysis reads. Other compilers see no annotations.
//
// tools/lint analyzes the rooms without LibTorch as a whole: a member that a mutex guards says so
// (GPIPE_GUARDED_BY), and an access without the mutex is an error there.
#ifndef GPIPE_RUNTIME_MUTEX_H_
#define GPIPE_RUNTIME_MUTEX_H_

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GPIPE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GPIPE_THREAD_ANNOTATION(x)
#endif

// Stands behind a member that only a thread that holds the mutex reads and writes.
#define GPIPE_GUARDED_BY(mutex) GPIPE_THREAD_ANNOTATION(guarded_by(mutex))
// Stand behind a function whose caller holds the mutex, or must not hold it.
#define GPIPE_REQUIRES(mutex) GPIPE_THREAD_ANNOTATION(requires_capability(mutex))
#define GPIPE_EXCLUDES(mutex) GPIPE_THREAD_ANNOTATION(locks_excluded(mutex))

namespace gpipe::internal {

class GPIPE_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() GPIPE_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() GPIPE_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds the mutex as long as the MutexLock lives.
class GPIPE_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GPIPE_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() GPIPE_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Lets go of a mutex that is held, as long as the MutexUnlock lives.
class GPIPE_THREAD_ANNOTATION(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) GPIPE_THREAD_ANNOTATION(release_capability(mutex))
      : mutex_(mutex) {
    mutex_.unlock();
  }
  // For the analysis, this attribute means that what the constructor did is undone: the mutex is
  // held.
  ~MutexUnlock() GPIPE_THREAD_ANNOTATION(release_capability()) { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable whose waits take the mutex itself, which the caller holds. A predicate is
// called with the mutex held. Write GPIPE_REQUIRES behind its parameters if the predicate reads
// what the mutex guards.
//
// Example:
//   MutexLock lock(mutex_);
//   changed_.wait(mutex_, [&]() GPIPE_REQUIRES(mutex_) { return is_done_; });
class Condition {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  // The functions below call predicates that need the mutex, and the analysis cannot know that it
  // is the mutex that the caller holds.
#define GPIPE_NOT_ANALYZED GPIPE_THREAD_ANNOTATION(no_thread_safety_analysis)
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate is_over) GPIPE_REQUIRES(mutex) GPIPE_NOT_ANALYZED {
    Held held(mutex.mutex_);
    changed_.wait(held.lock, is_over);
  }
  // Returns what the predicate returned last.
  template <typename Duration, typename Predicate>
  bool wait_for(Mutex& mutex, Duration limit, Predicate is_over)
      GPIPE_REQUIRES(mutex) GPIPE_NOT_ANALYZED {
    Held held(mutex.mutex_);
    return changed_.wait_for(held.lock, limit, is_over);
  }
  template <typename Time, typename Predicate>
  bool wait_until(Mutex& mutex, Time deadline, Predicate is_over)
      GPIPE_REQUIRES(mutex) GPIPE_NOT_ANALYZED {
    Held held(mutex.mutex_);
    return changed_.wait_until(held.lock, deadline, is_over);
  }
#undef GPIPE_NOT_ANALYZED

 private:
  // A lock of a mutex that is held before the lock is made and after it is destroyed.
  struct Held {
    explicit Held(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Held() { lock.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_MUTEX_H_
