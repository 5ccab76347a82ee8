// NoSigpipe: a write to a connection whose other end is gone returns an error.
//
// It would end the process by default, without a word: Gloo writes with writev(), which cannot say
// that it wants no signal. What the process does with SIGPIPE is the program's own affair, so only
// the calling thread is kept from it, and only for a while.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_NO_SIGPIPE_H_
#define GPIPE_DISTRIBUTED_SOCKETS_NO_SIGPIPE_H_

#include <csignal>

namespace gpipe::distributed {

// While it lives, the thread that made it gets no SIGPIPE, nor do threads that are started by it,
// for all their life.
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
