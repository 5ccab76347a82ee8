#include "gpipe/distributed/sockets/no_sigpipe.h"

#include <cerrno>
#include <csignal>
#include <ctime>

namespace gpipe::distributed {
namespace {

sigset_t sigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  return signals;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

NoSigpipe::NoSigpipe() {
  const sigset_t signals = sigpipe();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  // A SIGPIPE that is already pending does not come from writes in this scope, and stays pending.
  was_pending_ = sigismember(&before_, SIGPIPE) == 1 && is_pending();
}

NoSigpipe::~NoSigpipe() {
  // A SIGPIPE that came in this scope is taken away, because it would be delivered as soon as the
  // signal is unblocked.
  if (!was_pending_ && is_pending()) {
    const sigset_t signals = sigpipe();
    const timespec at_once{};
    while (sigtimedwait(&signals, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace gpipe::distributed
