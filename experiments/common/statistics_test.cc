#include "experiments/common/statistics.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::experiments {
namespace {

TEST(Statistics, Mean) { EXPECT_DOUBLE_EQ(mean({1, 2, 6}), 3); }

TEST(Statistics, MedianOfOddAndEvenNumber) {
  EXPECT_DOUBLE_EQ(median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(median({9, 1, 5, 6}), 5.5);
}

TEST(Statistics, SpreadIgnoresAnOutlier) {
  EXPECT_DOUBLE_EQ(median_absolute_deviation({1, 2, 3, 4, 1000}), 1);
}

TEST(Statistics, SkipsTheWarmUp) {
  EXPECT_DOUBLE_EQ(mean_after({100, 2, 4}, 1), 3);
  EXPECT_DOUBLE_EQ(mean_after({7}, 1), 7) << "nothing left: the only epoch counts";
}

TEST(Statistics, NothingMeasuredIsAnError) {
  EXPECT_THROW(mean({}), std::invalid_argument);
  EXPECT_THROW(median({}), std::invalid_argument);
  EXPECT_THROW(mean_after({}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
