// Watchdog: a test that hangs fails at once and says where.
#ifndef GPIPE_TESTING_WATCHDOG_H_
#define GPIPE_TESTING_WATCHDOG_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace gpipe::testing {

// Aborts the process, with a message that contains `what`, if it is not destroyed within `limit`.
// The process must be aborted, because threads that hang cannot be ended.
//
// Example:
//   Watchdog watchdog(std::chrono::seconds(60), "a failing forward");
//   EXPECT_THROW(pipe->forward(input), std::runtime_error);
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string what);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_WATCHDOG_H_
