// QuietLog: keeps LibTorch's warnings out of the log while this process asks a store.
#ifndef GPIPE_DISTRIBUTED_MEET_QUIET_LOG_H_
#define GPIPE_DISTRIBUTED_MEET_QUIET_LOG_H_

namespace gpipe::distributed {

// c10d logs a warning with LibTorch's stack frames for what its store throws as well, which our
// errors then tell.
//
// The level is the process's: while an object lives, warnings of other threads are left out, too.
// So the thread that waits for a store has it, and not the one that asks, which waits forever if
// the store is stopped. Errors are always logged. A level that the user has chosen stays, except
// one of errors alone that another thread chooses while an object lives: no level says whose it is.
//
// Thread-safety: objects may overlap on all threads.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_QUIET_LOG_H_
