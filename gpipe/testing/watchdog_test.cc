#include "gpipe/testing/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace gpipe::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(WatchdogTest, LetsABodyPassThatEndsInTime) {
  const auto start = std::chrono::steady_clock::now();
  { Watchdog watchdog(hours(1), "nothing"); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, hours(1));
}

TEST(WatchdogTest, LetsAnExceptionPass) {
  EXPECT_THROW(
      {
        Watchdog watchdog(hours(1), "a throw");
        throw std::runtime_error("x");
      },
      std::runtime_error);
}

TEST(WatchdogDeathTest, EndsTheProcessOfABodyThatHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Watchdog watchdog(milliseconds(20), "the body");
        std::this_thread::sleep_for(hours(1));
      },
      "the body took longer than 20 ms");
}

}  // namespace
}  // namespace gpipe::testing
