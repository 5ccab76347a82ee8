#include "gpipe/runtime/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace gpipe::internal {
namespace {

// Counted in the child by an atfork handler: cheaper on the hot path than asking for the process
// id.
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

}  // namespace gpipe::internal
