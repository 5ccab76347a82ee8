#include "balance/cut/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gpipe/testing/seed.h"

// This function exists only if //balance/cut:cuts is built with AddressSanitizer.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" void __asan_init() __attribute__((weak));

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

// The best blocks weigh 4, 4 and 1. A limit of 5 would allow blocks of 2, 2 and 5, which are as
// even by weight and more even by layers.
TEST(BestCuts, TheLongestTimeIsTheLeastToTheLastUnit) {
  EXPECT_EQ(best_cuts(make({0, 2, 2, 4, 1}, 3)), (Places{3, 4, 5}));
}

// The heaviest block is the same in all cuts. Only the last bits of 186-bit sums differ, and they
// must decide.
TEST(BestCuts, ComparesAllBitsOfTheUnevenness) {
  const int64_t large = kMost / 4;
  // Behind the first block the best cut has blocks of weight 2 and 3. Blocks of 4 and 1 would share
  // the layers more evenly.
  CutProblem problem = make({large, 2, 2, 0, 0, 0, 1}, 3);
  problem.slowness.assign(3, kMost);
  EXPECT_EQ(best_cuts(problem), (Places{1, 2, 7}));
  problem = make({large, 1, 0, 0, 0, 2, 2}, 3);
  problem.slowness.assign(3, kMost);
  EXPECT_EQ(best_cuts(problem), (Places{1, 6, 7}));
}

// Weights and slowness are as large as allowed: a sum that wraps would look small.
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

// Tries each end for each begin, without leaving out groups of ends. Its numbers are small, so it
// needs no wide sums.
std::optional<Places> try_all(const CutProblem& problem) {
  const size_t last = problem.cost.size() - 1;
  const size_t blocks = problem.slowness.size();
  const auto weight = [&](size_t b, size_t e) { return problem.cost[e] - problem.cost[b]; };
  const auto time = [&](size_t j, size_t b, size_t e) {
    return problem.slowness[j] * weight(b, e) +
           problem.transfer_slowness * (problem.receive[b] + problem.send[e]);
  };
  const auto fits = [&](size_t j, size_t b, size_t e) {
    return problem.size[e] - problem.size[b] <= problem.size_limit[j];
  };
  constexpr int64_t kNever = int64_t{1} << 60;
  // [place] The smallest longest time of the blocks behind it, for each block from the last one on.
  std::vector<int64_t> longest(last + 1, kNever);
  longest[last] = 0;
  for (size_t j = blocks; j-- > 0;) {
    std::vector<int64_t> next(last + 1, kNever);
    for (size_t b = 0; b < last; ++b) {
      for (size_t e = b + 1; e <= last && fits(j, b, e); ++e) {
        next[b] = std::min(next[b], std::max(longest[e], time(j, b, e)));
      }
    }
    longest = std::move(next);
  }
  const int64_t most = longest[0];
  if (most == kNever) return std::nullopt;
  using Sum = std::pair<int64_t, int64_t>;  // sums of weight x time and of squared layers
  std::vector<std::optional<Sum>> best(last + 1);
  best[last] = Sum{0, 0};
  std::vector<std::vector<size_t>> ends(blocks, std::vector<size_t>(last + 1));
  for (size_t j = blocks; j-- > 0;) {
    std::vector<std::optional<Sum>> next(last + 1);
    for (size_t b = 0; b < last; ++b) {
      for (size_t e = b + 1; e <= last && fits(j, b, e); ++e) {
        if (!best[e] || time(j, b, e) > most) continue;
        const int64_t layers = problem.layers[e] - problem.layers[b];
        const Sum sum{best[e]->first + weight(b, e) * time(j, b, e),
                      best[e]->second + layers * layers};
        if (next[b] && *next[b] <= sum) continue;
        next[b] = sum;
        ends[j][b] = e;
      }
    }
    best = std::move(next);
  }
  Places cuts;
  size_t place = 0;
  for (size_t j = 0; j < blocks; ++j) {
    place = ends[j][place];
    cuts.push_back(static_cast<int64_t>(place));
  }
  return cuts;
}

TEST(BestCuts, WithTransfersAreThoseOfTryingEveryEnd) {
  std::mt19937_64 random = testing::test_random();
  const auto draw = [&](int64_t past) { return static_cast<int64_t>(random() % past); };
  for (int round = 0; round < 400; ++round) {
    const int64_t layers = 2 + draw(round % 10 == 0 ? 200 : 40);
    const int64_t blocks = 1 + draw(std::min<int64_t>(layers, 12));
    const int64_t heavy = std::vector<int64_t>{1, 2, 10, 1000}[draw(4)];
    const int64_t transfer = std::vector<int64_t>{1, 2, heavy, 20 * heavy}[draw(4)];
    CutProblem problem;
    problem.layers = problem.cost = problem.size = {0};
    for (int64_t i = 0; i < layers; ++i) {
      problem.layers.push_back(problem.layers.back() + 1 + (draw(5) == 0));
      problem.cost.push_back(problem.cost.back() + (draw(3) == 0 ? 0 : draw(heavy + 1)));
      problem.size.push_back(problem.size.back() + draw(4));
    }
    // Sometimes one layer is heavier than all others together, so that every other block can be
    // anywhere.
    if (draw(3) == 0) problem.cost.back() += problem.cost.back();
    problem.send.assign(layers + 1, 0);
    problem.receive.assign(layers + 1, 0);
    for (int64_t i = 1; i < layers; ++i) {
      problem.send[i] = draw(transfer + 1);
      problem.receive[i] = draw(transfer + 1);
    }
    for (int64_t j = 0; j < blocks; ++j) {
      problem.slowness.push_back(1 + (draw(2) == 0 ? draw(4) : 0));
      problem.size_limit.push_back(draw(3) > 0
                                       ? problem.size.back()
                                       : problem.size.back() / blocks * (1 + draw(3)) + draw(4));
    }
    problem.transfer_slowness = 1 + draw(3);
    ASSERT_EQ(best_cuts(problem), try_all(problem)) << "in round " << round;
  }
}

TEST(BestCuts, OfThousandsOfLayersWithTransfersAreFoundAtOnce) {
  constexpr int64_t kLayers = 5000;
  std::mt19937_64 random = testing::test_random();
  CutProblem problem = make(std::vector<int64_t>(kLayers, 1), 64);
  for (int64_t i = 1; i <= kLayers; ++i) {
    problem.cost[i] = problem.cost[i - 1] + static_cast<int64_t>(random() % 1000);
  }
  problem.cost.back() += 1000 * kLayers;
  problem.send.assign(kLayers + 1, 0);
  problem.receive.assign(kLayers + 1, 0);
  for (int64_t i = 1; i < kLayers; ++i) {
    problem.send[i] = static_cast<int64_t>(random() % 1000);
    problem.receive[i] = static_cast<int64_t>(random() % 1000);
  }
  const std::clock_t begin = std::clock();
  const auto cuts = best_cuts(problem);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_TRUE(cuts);
  EXPECT_EQ(cuts->back(), kLayers);
  std::cout << seconds << " s of processor time\n";
#ifdef NDEBUG
  if (!__asan_init) {
    EXPECT_LT(seconds, 2.0);  // 0.5 s on a core of 2.6 GHz; 4.3 s if all ends are tried
  }
#endif
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
