#include "gpipe/distributed/meet/errands.h"

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

// How long the destructor waits for all calls together. A call that ends for the same reason as its
// caller ends within this time, so it does not run while the process destroys its static objects.
constexpr std::chrono::milliseconds kPatience{300};

}  // namespace

Errands::~Errands() {
  const Clock::time_point end = Clock::now() + kPatience;
  for (Errand& errand : threads_) {
    if (errand.done.wait_until(end) == std::future_status::ready) {
      errand.thread.join();
    } else {
      errand.thread.detach();
    }
  }
}

void Errands::forget_done() {
  for (auto errand = threads_.begin(); errand != threads_.end();) {
    if (errand->done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++errand;
      continue;
    }
    errand->thread.join();
    errand = threads_.erase(errand);
  }
}

}  // namespace gpipe::distributed
