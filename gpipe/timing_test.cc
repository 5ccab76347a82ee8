#include "gpipe/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace gpipe {
namespace {

TEST(TimingTest, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({7}), 7);
  EXPECT_DOUBLE_EQ(median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(median({9, 1, 5, 6}), 5.5);
  EXPECT_THROW(median({}), std::invalid_argument);
}

TEST(TimingTest, MeasuresACall) {
  const double begin = steady_seconds();
  const double seconds =
      seconds_of([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  EXPECT_GE(seconds, 0.02);
  EXPECT_GE(steady_seconds() - begin, seconds);
}

}  // namespace
}  // namespace gpipe
