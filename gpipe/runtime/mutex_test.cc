#include "gpipe/runtime/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace gpipe::internal {
namespace {

TEST(Mutex, IsFreeWhileItIsUnlocked) {
  Mutex mutex;
  int count = 0;
  const MutexLock lock(mutex);
  {
    const MutexUnlock unlock(mutex);
    std::thread([&] {
      const MutexLock other(mutex);
      ++count;
    }).join();
  }
  EXPECT_EQ(count, 1);
}

TEST(Condition, WaitsUntilThePredicateHolds) {
  Mutex mutex;
  Condition changed;
  bool is_done = false;
  std::thread other;
  {
    const MutexLock lock(mutex);
    other = std::thread([&] {
      const MutexLock lock(mutex);
      is_done = true;
      changed.notify_all();
    });
    changed.wait(mutex, [&] { return is_done; });
    EXPECT_TRUE(is_done);
  }
  other.join();
}

TEST(Condition, SaysWhatThePredicateIsWhenTheTimeIsOver) {
  Mutex mutex;
  Condition changed;
  const MutexLock lock(mutex);
  EXPECT_FALSE(changed.wait_for(mutex, std::chrono::milliseconds(1), [] { return false; }));
  EXPECT_TRUE(changed.wait_until(mutex, std::chrono::steady_clock::now(), [] { return true; }));
}

// If the predicate throws, the mutex is held afterwards, so that `lock` can let go of it.
TEST(Condition, KeepsTheMutexIfThePredicateThrows) {
  Mutex mutex;
  Condition changed;
  {
    const MutexLock lock(mutex);
    EXPECT_THROW(changed.wait(mutex, []() -> bool { throw std::runtime_error("no"); }),
                 std::runtime_error);
  }
  std::thread([&] { const MutexLock lock(mutex); }).join();
}

}  // namespace
}  // namespace gpipe::internal
