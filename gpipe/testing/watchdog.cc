#include "gpipe/testing/watchdog.h"

#include <cstdlib>
#include <iostream>
#include <utility>

namespace gpipe::testing {

Watchdog::Watchdog(std::chrono::milliseconds limit, std::string what)
    : thread_([this, limit, what = std::move(what)] {
        std::unique_lock<std::mutex> lock(mutex_);
        if (changed_.wait_for(lock, limit, [this] { return done_; })) return;
        std::cerr << "watchdog: " << what << " took longer than " << limit.count() << " ms"
                  << std::endl;
        std::abort();
      }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace gpipe::testing
