#include "balance/cuts.h"

#include <gtest/gtest.h>

namespace gpipe::balance::internal {
namespace {

constexpr int64_t kMost = (int64_t{1} << 62) - 1;

// Layers with these weights, all of size 1.
CutProblem make(const std::vector<int64_t>& weights, size_t blocks) {
  CutProblem problem;
  problem.layers = problem.cost = problem.size = {0};
  for (int64_t weight : weights) {
    problem.layers.push_back(problem.layers.back() + 1);
    problem.cost.push_back(problem.cost.back() + weight);
    problem.size.push_back(problem.size.back() + 1);
  }
  problem.slowness.assign(blocks, 1);
  problem.size_limit.assign(blocks, static_cast<int64_t>(weights.size()));
  return problem;
}

using Places = std::vector<int64_t>;

TEST(BestCuts, EndsWithTheLastPlace) {
  EXPECT_EQ(best_cuts(make({1, 2, 3, 4, 5, 6}, 2)), (Places{4, 6}));
  EXPECT_EQ(best_cuts(make({1}, 1)), (Places{1}));
}

// 4, 4, 1. One more would allow 2, 2, 5, as even by weight and more so by layers.
TEST(BestCuts, TheLongestTimeIsTheLeastToTheLastUnit) {
  EXPECT_EQ(best_cuts(make({0, 2, 2, 4, 1}, 3)), (Places{3, 4, 5}));
}

// The heaviest block is given; all that decides are the last bits of sums of 186.
TEST(BestCuts, ComparesAllBitsOfTheUnevenness) {
  const int64_t large = kMost / 4;
  // 2 + 3 behind the first block, not 4 + 1, though that would share the layers more evenly.
  CutProblem problem = make({large, 2, 2, 0, 0, 0, 1}, 3);
  problem.slowness.assign(3, kMost);
  EXPECT_EQ(best_cuts(problem), (Places{1, 2, 7}));
  problem = make({large, 1, 0, 0, 0, 2, 2}, 3);
  problem.slowness.assign(3, kMost);
  EXPECT_EQ(best_cuts(problem), (Places{1, 6, 7}));
}

// Weights and slowness as large as they may be: a sum that wrapped would look small.
TEST(BestCuts, TheLargestNumbersDoNotWrap) {
  const int64_t eighth = kMost / 8;
  CutProblem problem = make(std::vector<int64_t>(8, eighth), 4);
  problem.slowness.assign(4, kMost);
  EXPECT_EQ(best_cuts(problem), (Places{2, 4, 6, 8}));
  problem.slowness = {kMost, kMost, 1, kMost};
  EXPECT_EQ(best_cuts(problem), (Places{1, 2, 7, 8}));
  problem.slowness.assign(4, kMost);
  problem.transfer_slowness = kMost;
  problem.cost = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  problem.send = problem.receive = std::vector<int64_t>(9, kMost / 9);
  problem.send.back() = problem.receive.front() = 0;
  EXPECT_EQ(best_cuts(problem), (Places{3, 4, 5, 8}));
}

TEST(MissingSize, IsTheLeastThatHelps) {
  CutProblem problem = make({1, 1, 1, 1, 1, 1, 1}, 3);
  problem.size_limit = {1, 2, 2};
  EXPECT_EQ(best_cuts(problem), std::nullopt);
  EXPECT_EQ(missing_size(problem), 1);
  problem.size_limit = {0, 0, 0};
  EXPECT_EQ(missing_size(problem), 3);
  for (int64_t& limit : problem.size_limit) limit += 3;
  EXPECT_EQ(best_cuts(problem), (Places{2, 4, 7}));
}

}  // namespace
}  // namespace gpipe::balance::internal
