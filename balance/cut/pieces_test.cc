#include "balance/cut/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

TEST(Pieces, EveryLayerIsOneUnlessItIsKeptWithOthers) {
  EXPECT_THAT(Pieces(3, {}, "").places(), ElementsAre(0, 1, 2, 3));
  const Pieces pieces(7, {{1, 2}, {2, 4}, {6, 6}}, "");
  EXPECT_EQ(pieces.size(), 4);
  EXPECT_THAT(pieces.places(), ElementsAre(0, 1, 5, 6, 7));
  EXPECT_TRUE(pieces.may_cut(1));
  EXPECT_FALSE(pieces.may_cut(4));
}

TEST(Pieces, ABalanceThatCutsOneIsNotAllowed) {
  const Pieces pieces(6, {{1, 3}}, "");
  EXPECT_TRUE(pieces.allow({6}));
  EXPECT_TRUE(pieces.allow({1, 3, 2}));
  EXPECT_FALSE(pieces.allow({2, 4}));
  EXPECT_FALSE(pieces.allow({4, 0, 2}));
  EXPECT_FALSE(pieces.allow({7, -1}));
}

// A partition that is moved beyond the last layer makes a later one negative. Such a balance is not
// allowed although its sum is right.
TEST(Pieces, ABalanceThatLeavesTheLayersIsNotAllowed) {
  EXPECT_FALSE(Pieces(6, {}, "").allow({1000000, 1, -999995}));
}

TEST(Pieces, WrongRangesAreNamed) {
  EXPECT_EQ(wrong_ranges(6, {{0, 5}, {3, 3}}), "");
  for (const LayerRange& wrong : {LayerRange{-1, 2}, LayerRange{4, 2}, LayerRange{2, 6}}) {
    EXPECT_THAT(
        [&] {
          Pieces(6, {{0, 1}, wrong}, "cut: ");
        },
        ThrowsMessage<std::invalid_argument>(
            "cut: keep_together[1] is layers " + std::to_string(wrong.first) + " to " +
            std::to_string(wrong.last) + ", expected first <= last, both from 0 to 5"));
  }
}

TEST(Pieces, OfSeveralLayersAreRanges) {
  EXPECT_TRUE(joined_layers({1, 1}).empty());
  const std::vector<LayerRange> joined = joined_layers({1, 3, 1, 2});
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[0].first, 1);
  EXPECT_EQ(joined[0].last, 3);
  EXPECT_EQ(joined[1].first, 5);
  EXPECT_EQ(joined[1].last, 6);
}

}  // namespace
}  // namespace gpipe::balance
