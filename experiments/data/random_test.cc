#include "experiments/data/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace gpipe::experiments {
namespace {

TEST(Random, SameKeysSameStream) {
  Random a({1, 2, 3});
  Random b({1, 2, 3});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), b.next());
}

TEST(Random, NeighboringKeysGiveUnrelatedStreams) {
  std::set<uint64_t> first;
  for (uint64_t epoch = 0; epoch < 30; ++epoch) {
    for (uint64_t index = 0; index < 30; ++index) first.insert(Random({7, epoch, index}).next());
  }
  EXPECT_EQ(first.size(), 900u) << "(epoch, index) and (index, epoch) must differ too";
}

TEST(Random, UniformStaysInRangeAndFillsIt) {
  Random random({5});
  std::vector<int> tenths(10, 0);
  for (int i = 0; i < 10000; ++i) {
    const double x = random.uniform(2, 3);
    ASSERT_GE(x, 2);
    ASSERT_LT(x, 3);
    ++tenths[static_cast<std::size_t>((x - 2) * 10)];
  }
  for (int count : tenths) EXPECT_NEAR(count, 1000, 150);
}

TEST(Random, BelowReachesEveryValueAndNoOther) {
  Random random({6});
  std::set<int64_t> seen;
  for (int i = 0; i < 500; ++i) seen.insert(random.below(7));
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(RandomPermutation, HoldsEachIndexOnce) {
  std::vector<int64_t> order = random_permutation(1000, Random({1}));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(order, random_permutation(1000, Random({2})));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_TRUE(random_permutation(0, Random({1})).empty());
}

}  // namespace
}  // namespace gpipe::experiments
