#include "balance/cut/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gpipe/testing/seed.h"

namespace gpipe::balance::internal {
namespace {

constexpr int64_t kBound = int64_t{1} << 62;

std::vector<int64_t> units(const std::vector<double>& values) {
  const Grid grid(values);
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (double value : values) result.push_back(grid.units(value));
  return result;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::vector<double> random_values(size_t count, std::mt19937_64& random) {
  std::vector<double> values(count);
  const int spread = std::uniform_int_distribution<>(0, 80)(random);
  for (double& value : values) {
    value = std::ldexp(std::uniform_real_distribution<>(0.5, 1.0)(random),
                       std::uniform_int_distribution<>(-spread, 0)(random));
  }
  return values;
}

TEST(Grid, NothingAndZerosAreZeroUnits) {
  EXPECT_EQ(units({}), std::vector<int64_t>{});
  EXPECT_EQ(units({0.0, -0.0}), (std::vector<int64_t>{0, 0}));
}

TEST(Grid, WholeNumbersKeepTheirRatios) {
  const std::vector<int64_t> result = units({3, 0, 1, 1099511627777});
  EXPECT_EQ(result[0], 3 * result[2]);
  EXPECT_EQ(result[1], 0);
  EXPECT_EQ(result[3], 1099511627777 * result[2]);
}

TEST(Grid, TheSumIsJustBelowTheBound) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 2000; ++k) {
    const int64_t total = sum(units(random_values(1 + k % 1000, random)));
    EXPECT_LT(total, kBound);
    EXPECT_GE(total, kBound / 4);
  }
  // The bound holds whatever rounding does to the sum.
  EXPECT_LT(sum(units(std::vector<double>(1 << 20, std::nextafter(1.0, 0.0)))), kBound);
  EXPECT_LT(sum(units({std::nextafter(1.0, 0.0)})), kBound);
}

TEST(Grid, UnitsAreTheNearest) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 200; ++k) {
    const std::vector<double> values = random_values(20, random);
    const std::vector<int64_t> result = units(values);
    const double largest = *std::max_element(values.begin(), values.end());
    const size_t largest_index = std::max_element(values.begin(), values.end()) - values.begin();
    // The largest of the 20 values has at least 55 bits, more than a double. So its units are exact
    // and give the size of one unit.
    const long double unit = static_cast<long double>(largest) / result[largest_index];
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(values[i] / unit - static_cast<long double>(result[i])), 0.5L);
    }
  }
}

TEST(Grid, HalvesAreRoundedUpwards) {
  // 2^60 + 1 units of 1/4: the values 1/8 and 3/8 are half a unit and one and a half.
  const std::vector<int64_t> result = units({0x1p59, 0x1p-3, 0x3p-3, 0x1p-4});
  EXPECT_EQ(result, (std::vector<int64_t>{int64_t{1} << 61, 1, 2, 0}));
}

TEST(Grid, ScalingByAPowerOfTwoChangesNothing) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 200; ++k) {
    const std::vector<double> values = random_values(30, random);
    std::vector<double> scaled = values;
    const int exponent = std::uniform_int_distribution<>(-800, 900)(random);
    for (double& value : scaled) value = std::ldexp(value, exponent);
    EXPECT_EQ(units(scaled), units(values)) << exponent;
  }
}

TEST(Grid, TheLargestAndTheSmallestNumbersThereAre) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kMin = std::numeric_limits<double>::denorm_min();
  const std::vector<int64_t> large = units(std::vector<double>(1000, kMax));
  EXPECT_LT(sum(large), kBound);
  EXPECT_GE(sum(large), kBound / 4);
  const std::vector<int64_t> small = units({kMin, 3 * kMin});
  EXPECT_EQ(small[1], 3 * small[0]);
  EXPECT_GE(sum(small), kBound / 4);
  EXPECT_EQ(units({kMax, kMin})[1], 0);
}

}  // namespace
}  // namespace gpipe::balance::internal
