#include "gpipe/distributed/meet/detached_calls.h"

namespace gpipe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

// How long the destructor waits for all calls together. A call that ends for the same reason as its
// caller ends within this time, so it does not run while the process destroys its static objects.
constexpr std::chrono::milliseconds kPatience{300};

}  // namespace

DetachedCalls::~DetachedCalls() {
  const Clock::time_point end = Clock::now() + kPatience;
  for (DetachedCall& call : threads_) {
    if (call.done.wait_until(end) == std::future_status::ready) {
      call.thread.join();
    } else {
      call.thread.detach();
    }
  }
}

void DetachedCalls::forget_done() {
  for (auto call = threads_.begin(); call != threads_.end();) {
    if (call->done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++call;
      continue;
    }
    call->thread.join();
    call = threads_.erase(call);
  }
}

}  // namespace gpipe::distributed
