#include "balance/cut/move_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

using Balance = std::vector<int64_t>;

// A search for the balance that is nearest to `wanted`.
CutMoves towards(const Balance& wanted, const Balance& from, int64_t distance) {
  const auto far = [wanted](const Balance& balance) {
    int64_t sum = 0;
    for (size_t j = 0; j < balance.size(); ++j) sum += std::abs(balance[j] - wanted[j]);
    return sum;
  };
  CutMoves moves;
  moves.distance = distance;
  moves.goes_on = [] { return true; };
  moves.is_better = [far, best = far(from)](const Balance& balance) mutable {
    if (far(balance) >= best) return false;
    best = far(balance);
    return true;
  };
  return moves;
}

TEST(MoveCuts, ABetterCutLeadsToTheNext) {
  const Balance from = {1, 1, 38};
  EXPECT_THAT(move_cuts(from, Pieces(40, {}, ""), towards({20, 13, 7}, from, 4)),
              ElementsAre(20, 13, 7));
}

TEST(MoveCuts, PiecesAreNotCut) {
  const Balance from = {1, 5};
  EXPECT_THAT(move_cuts(from, Pieces(6, {{2, 4}}, ""), towards({3, 3}, from, 1)),
              ElementsAre(2, 4));
}

// The middle partition keeps its size on the way.
TEST(MoveCuts, APartitionMovesAsAWhole) {
  const Balance from = {1, 4, 5};
  CutMoves moves = towards({5, 4, 1}, from, 1);
  moves.is_better = [moves](const Balance& balance) {
    return balance[1] == 4 && moves.is_better(balance);
  };
  EXPECT_THAT(move_cuts(from, Pieces(10, {}, ""), moves), ElementsAre(5, 4, 1));
  moves.partitions = false;
  moves.is_better = [](const Balance& balance) { return balance[1] == 4; };
  EXPECT_THAT(move_cuts(from, Pieces(10, {}, ""), moves), ElementsAre(1, 4, 5));
}

TEST(MoveCuts, OtherChangesComeBeforeTheMovesOfEachDistance) {
  const Balance from = {4, 4};
  CutMoves moves = towards({4, 4}, from, 2);
  int calls = 0;
  moves.change_others = [&] { return ++calls == 1; };
  move_cuts(from, Pieces(8, {}, ""), moves);
  // Cuts move by 2 layers, by 2 again because the first move was better, and by 1.
  EXPECT_EQ(calls, 3);
}

TEST(MoveCuts, ASearchEndsWhereItDoesNotGoOn) {
  const Balance from = {1, 1, 38};
  CutMoves moves = towards({20, 13, 7}, from, 4);
  int cuts = 0;
  moves.goes_on = [&] { return ++cuts < 3; };  // before the search, and before its first cut
  EXPECT_THAT(move_cuts(from, Pieces(40, {}, ""), moves), ElementsAre(5, 1, 34));
}

TEST(MoveCuts, TheFirstDistanceIsAShareOfAPartition) {
  EXPECT_EQ(first_distance(8, 2), 1);
  EXPECT_EQ(first_distance(40, 2), 4);
  EXPECT_EQ(first_distance(100000, 2), 16);
}

TEST(MoveCuts, CutsBesideAPartitionMoveOneOfItsEndsByAPiece) {
  const std::vector<int64_t> pieces = {1, 1, 3, 1, 2};
  EXPECT_THAT(cuts_beside({2, 3, 3}, pieces, 1),
              ElementsAre(ElementsAre(1, 4, 3), ElementsAre(2, 4, 2)));
  EXPECT_THAT(cuts_beside({2, 3, 3}, pieces, 0), ElementsAre(ElementsAre(1, 4, 3)));
  EXPECT_THAT(cuts_beside({8}, pieces, 0), ElementsAre());
}

}  // namespace
}  // namespace gpipe::balance
