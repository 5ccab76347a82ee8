#include "command/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <iterator>
#include <stdexcept>

namespace gpipe::command {
namespace {

std::atomic<bool> requested_flag{false};
std::atomic<bool> scope_alive{false};
// The flag must be lock-free, because a handler that takes a lock could deadlock with the
// interrupted thread.
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) {
  requested_flag.store(true);
  // The text is printed at once, because the step may take minutes.
  constexpr char kText[] = "\nstopping after this step; interrupt again to stop at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

// The signals that ask for a stop. SIGHUP (a closed terminal) counts like Ctrl-C.
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

InterruptScope::InterruptScope() {
  if (scope_alive.exchange(true)) {
    throw std::logic_error("an InterruptScope is alive already: keep one, in main");
  }
  requested_flag.store(false);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  // With SA_RESETHAND the second signal gets the default action. With SA_RESTART reads and writes
  // in progress continue.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t k = 0; k < std::size(kSignals); ++k) {
    sigaction(kSignals[k], nullptr, &previous_[k]);
    // A signal that is already ignored, as under nohup, stays ignored.
    if (previous_[k].sa_handler != SIG_IGN) sigaction(kSignals[k], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  for (std::size_t k = 0; k < std::size(kSignals); ++k) {
    sigaction(kSignals[k], &previous_[k], nullptr);
  }
  scope_alive.store(false);
}

bool InterruptScope::requested() const noexcept { return requested_flag.load(); }

void InterruptScope::check() const {
  if (requested()) throw Interrupted();
}

}  // namespace gpipe::command
