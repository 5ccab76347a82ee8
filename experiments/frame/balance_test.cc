#include "experiments/frame/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ScaleBalance, KeepsTheShares) {
  EXPECT_THAT(scale_balance({140, 230}, 370), ElementsAre(140, 230));
  EXPECT_THAT(scale_balance({140, 230}, 37), ElementsAre(14, 23));
  for (int64_t layers = 8; layers < 100; ++layers) {
    const std::vector<int64_t> scaled = scale_balance({26, 22, 33, 44, 44, 66, 66, 69}, layers);
    EXPECT_EQ(std::accumulate(scaled.begin(), scaled.end(), int64_t{0}), layers);
    for (const int64_t size : scaled) EXPECT_GT(size, 0) << layers;
  }
  EXPECT_THROW(scale_balance({1, 1, 1}, 2), std::invalid_argument);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{0, 0}, {1, -1}, {kMost, kMost}, {kMost, 1}}) {
    EXPECT_THAT([&] { scale_balance(wrong, 8); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("each has at least 1")));
  }
}

TEST(ChooseBalance, TheGivenOneMustFit) {
  EXPECT_THAT(
      [] {
        choose_balance({12, 12, 13}, {140, 230}, "net", 37);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("is for 3 partitions, not for 2")));
  EXPECT_THAT(choose_balance({}, {140, 230}, "net", 37), ElementsAre(14, 23));
  EXPECT_THAT(choose_balance({30, 7}, {140, 230}, "net", 37), ElementsAre(30, 7));
  EXPECT_THAT(
      [] {
        choose_balance({30, 8}, {140, 230}, "net", 37);
      },
      ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("[30, 8] sums up to 38"), HasSubstr("net has 37 layers"))));
}

}  // namespace
}  // namespace gpipe::experiments
