// NoSigpipe: makes a write to a connection whose other end is gone return an error.
//
// By default such a write ends the process without a message: Gloo writes with writev(), which has
// no flag against the signal. How the process handles SIGPIPE is up to the program, so this blocks
// the signal for the calling thread only, and only temporarily.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_NO_SIGPIPE_H_
#define GPIPE_DISTRIBUTED_SOCKETS_NO_SIGPIPE_H_

#include <csignal>

namespace gpipe::distributed {

// While it lives, the thread that constructed it gets no SIGPIPE. Threads that this thread starts
// meanwhile get none for all their life.
class NoSigpipe {
 public:
  NoSigpipe();
  ~NoSigpipe();
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_NO_SIGPIPE_H_
