#include "experiments/rows/speed_table_checks.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace gpipe::experiments {

void expect_balances_of(int64_t layers, const std::vector<SpeedVariant>& variants) {
  for (const SpeedVariant& variant : variants) {
    const std::vector<int64_t>& balance = variant.balance;
    if (balance.empty()) continue;
    EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}), layers) << variant.name;
  }
}

void expect_speed_ups_of_throughputs(const std::vector<SpeedVariant>& variants) {
  ASSERT_FALSE(variants.empty());
  const double first = std::stod(variants.front().published.throughput);
  for (const SpeedVariant& variant : variants) {
    const SpeedFigures& published = variant.published;
    EXPECT_NEAR(std::stod(published.torchgpipe), std::stod(published.throughput) / first, 0.0006);
  }
}

}  // namespace gpipe::experiments
