#include "gpipe/runtime/fork_guard.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace gpipe::internal {
namespace {

// A number that each fork raises in the child. An atfork handler does that, because reading the
// number is cheaper on the hot path than asking for the process id.
std::atomic<uint64_t> fork_generation{0};

void register_handler() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)registered;
}

}  // namespace

ForkGuard::ForkGuard() {
  register_handler();
  generation_ = fork_generation.load();
}

bool ForkGuard::stale() const { return generation_ != fork_generation.load(); }

void ForkGuard::check() const {
  if (!stale()) return;
  throw std::logic_error(
      "this pipeline was made before fork(), and its worker threads exist in the parent process "
      "only; make a new pipeline in the child process");
}

}  // namespace gpipe::internal
