#include "gpipe/internal/backward/group_sums.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {
namespace {

// Any node can stand for an accumulator here.
NodePtr accumulator() { return make_node<GradientSink>(); }

TEST(GroupSums, EachGroupBeginsWithNothing) {
  GroupSums sums;
  const auto node = accumulator();
  const at::Tensor leaf = at::full({1}, 0.0F);
  *sums.sum_of(node, leaf, 0) = at::full({1}, 1.0F);
  EXPECT_TRUE(sums.sum_of(node, leaf, 0)->defined());
  EXPECT_FALSE(sums.sum_of(node, leaf, 1)->defined());
  *sums.sum_of(node, leaf, 1) = at::full({1}, 2.0F);
  EXPECT_FALSE(sums.sum_of(node, leaf, 5)->defined());
  *sums.sum_of(node, leaf, 5) = at::full({1}, 4.0F);
  const auto leaves = sums.take();
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].accumulator, node);
  EXPECT_TRUE(leaves[0].leaf.is_same(leaf));
  EXPECT_EQ(leaves[0].sum.item<float>(), 7);
  EXPECT_TRUE(sums.take().empty());
}

TEST(GroupSums, LeavesComeInTheOrderInWhichTheyWereReached) {
  GroupSums sums;
  const auto first = accumulator();
  const auto second = accumulator();
  const auto without = accumulator();
  const at::Tensor leaf = at::full({1}, 0.0F);
  *sums.sum_of(first, leaf, 0) = at::full({1}, 1.0F);
  (void)sums.sum_of(without, leaf, 0);
  *sums.sum_of(second, leaf, 0) = at::full({1}, 2.0F);
  const auto leaves = sums.take();
  ASSERT_EQ(leaves.size(), 2u);
  EXPECT_EQ(leaves[0].accumulator, first);
  EXPECT_EQ(leaves[1].accumulator, second);
}

}  // namespace
}  // namespace gpipe::internal
