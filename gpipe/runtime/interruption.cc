#include "gpipe/runtime/interruption.h"

#include <atomic>

namespace gpipe::internal {
namespace {

std::atomic<InterruptionCheck> current{nullptr};

}  // namespace

void set_interruption_check(InterruptionCheck check) { current = check; }

InterruptionCheck interruption_check() { return current; }

}  // namespace gpipe::internal
