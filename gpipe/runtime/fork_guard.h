// ForkGuard: tells an object that owns threads whether it is still in the process that made them.
//
// After fork() the child has a copy of the object but none of its threads. So waiting for one of
// these threads would never end. Objects that own threads keep a ForkGuard and refuse to work if it
// is stale.
#ifndef GPIPE_RUNTIME_FORK_GUARD_H_
#define GPIPE_RUNTIME_FORK_GUARD_H_

#include <cstdint>

namespace gpipe::internal {

// Thread-safety: all functions are thread-safe.
//
// Example:
//   ForkGuard guard;
//   if (fork() == 0) assert(guard.stale());
class ForkGuard {
 public:
  ForkGuard();

  // True in every process that was forked after this object was made.
  bool stale() const;

  // Throws std::logic_error that says what to do instead, if stale() is true.
  void check() const;

 private:
  uint64_t generation_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_RUNTIME_FORK_GUARD_H_
