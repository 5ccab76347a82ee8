#include "gpipe/internal/backward/leaf_sums.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

// Any node can stand for an accumulator here.
NodePtr accumulator() { return make_node<GradientSink>(); }

std::vector<LeafSums::Entry> taken(LeafSums& sums, int64_t owner) {
  std::vector<LeafSums::Entry> result;
  sums.take(owner, [&](LeafSums::Entry entry) { result.push_back(std::move(entry)); });
  return result;
}

// Stage 2 adds to leaves of stages 0 and 1. Stage 1 then takes its own leaf, and the leaf of stage
// 0 must stay.
TEST(LeafSums, WhatOthersOwnStays) {
  LeafSums sums;
  const auto of_first = accumulator();
  const auto of_second = accumulator();
  *sums.sum_of(of_first, 0) = at::ones({1});
  *sums.sum_of(of_second, 1) = at::ones({2});
  const auto second = taken(sums, 1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].accumulator, of_second);
  EXPECT_EQ(second[0].sum.numel(), 2);
  EXPECT_FALSE(sums.empty());
  const auto first = taken(sums, 0);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].accumulator, of_first);
  EXPECT_EQ(first[0].sum.numel(), 1);
  EXPECT_TRUE(sums.empty());
}

TEST(LeafSums, OneLeafHasOnePlace) {
  LeafSums sums;
  const auto leaf = accumulator();
  at::Tensor* const place = sums.sum_of(leaf, 0);
  for (int k = 0; k < 100; ++k) (void)sums.sum_of(accumulator(), 0);
  EXPECT_EQ(sums.sum_of(leaf, 0), place);
}

TEST(LeafSums, WhereNothingArrivedThereIsNothingToTake) {
  LeafSums sums;
  (void)sums.sum_of(accumulator(), 0);
  EXPECT_TRUE(taken(sums, 0).empty());
  EXPECT_TRUE(sums.empty());
}

}  // namespace
}  // namespace gpipe::internal
