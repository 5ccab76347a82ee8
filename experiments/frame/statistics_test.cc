#include "experiments/frame/statistics.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::experiments {
namespace {

TEST(Statistics, Mean) { EXPECT_DOUBLE_EQ(mean({1, 2, 6}), 3); }

TEST(Statistics, SkipsTheWarmUp) {
  EXPECT_DOUBLE_EQ(mean_after({100, 2, 4}, 1), 3);
  EXPECT_DOUBLE_EQ(mean_after({7}, 1), 7) << "nothing left: the only epoch counts";
}

TEST(Statistics, RangeIsOfWhatCounts) {
  EXPECT_DOUBLE_EQ(range_after({100, 2, 5, 4}, 1), 2.5);
  EXPECT_DOUBLE_EQ(range_after({100, 2, 5, 4}, 0), 50);
  EXPECT_DOUBLE_EQ(range_after({3, 6}, 2), 2) << "nothing left: all count";
}

TEST(Statistics, NothingMeasuredIsAnError) {
  EXPECT_THROW(mean({}), std::invalid_argument);
  EXPECT_THROW(mean_after({}, 0), std::invalid_argument);
  EXPECT_THROW(range_after({}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
