#include "experiments/common/interrupt.h"

#include <atomic>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

std::atomic<bool> requested_flag{false};
std::atomic<bool> scope_alive{false};
// A handler that takes a lock could deadlock with the interrupted thread.
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) { requested_flag.store(true); }

}  // namespace

InterruptScope::InterruptScope() {
  if (scope_alive.exchange(true)) {
    throw std::logic_error("an InterruptScope is alive already: keep one, in main");
  }
  requested_flag.store(false);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  // RESETHAND: the second signal is not ours any more. RESTART: reads and writes under way go on.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt_);
  sigaction(SIGTERM, &action, &previous_terminate_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &previous_interrupt_, nullptr);
  sigaction(SIGTERM, &previous_terminate_, nullptr);
  scope_alive.store(false);
}

bool InterruptScope::requested() const noexcept { return requested_flag.load(); }

}  // namespace gpipe::experiments
