#include "balance/cut/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "balance/testing/torchgpipe_partition.h"
#include "gpipe/testing/seed.h"

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using testing::torchgpipe_partition;
using testing::TorchgpipesAnswer;
using Balance = std::vector<int64_t>;
using Costs = std::vector<double>;

// --- The promises of partition(), checked by trying every cut

// Costs, slowness and cut costs in tests are multiples of 2^-20 below 2^20, so these are exact.
constexpr double kScale = 0x1p20;
using Whole = __int128;

Whole whole(double value) {
  const double scaled = value * kScale;
  EXPECT_EQ(scaled, std::floor(scaled)) << value << " is not for brute force";
  return static_cast<Whole>(scaled);
}

// The criteria that compare cuts, in the order of partition.h. The last one is the cut itself.
struct Rank {
  Whole longest = 0;
  Whole unevenness = 0;
  int64_t squared_layers = 0;
  Balance balance;

  friend bool operator<(const Rank& a, const Rank& b) {
    return std::tie(a.longest, a.unevenness, a.squared_layers, a.balance) <
           std::tie(b.longest, b.unevenness, b.squared_layers, b.balance);
  }
};

// The rank of a cut; none if the options forbid the cut.
std::optional<Rank> rank(const Costs& costs, const Balance& balance,
                         const PartitionOptions& options) {
  Rank result;
  result.balance = balance;
  int64_t begin = 0;
  for (size_t j = 0; j < balance.size(); ++j) {
    const int64_t end = begin + balance[j];
    Whole weight = 0;
    int64_t size = 0;
    for (int64_t i = begin; i < end; ++i) {
      weight += whole(costs[i]);
      if (!options.sizes.empty()) size += options.sizes[i];
    }
    if (!options.sizes.empty() && size > options.size_limits[j]) return std::nullopt;
    for (const LayerRange& range : options.keep_together) {
      if (range.first < end && end <= range.last) return std::nullopt;
    }
    Whole time = weight * whole(options.slowness.empty() ? 1.0 : options.slowness[j]);
    if (begin > 0 && !options.receive_costs.empty()) {
      time += whole(options.receive_costs[begin - 1]) * whole(1.0);
    }
    if (j + 1 < balance.size() && !options.send_costs.empty()) {
      time += whole(options.send_costs[end - 1]) * whole(1.0);
    }
    result.longest = std::max(result.longest, time);
    result.unevenness += weight * time;
    result.squared_layers += balance[j] * balance[j];
    begin = end;
  }
  return result;
}

// Calls `visit` for every way to write `layers` as a sum of `partitions` numbers.
void for_each_balance(int64_t layers, int64_t partitions,
                      const std::function<void(const Balance&)>& visit) {
  Balance balance;
  const std::function<void(int64_t)> extend = [&](int64_t left) {
    const int64_t blocks_left = partitions - static_cast<int64_t>(balance.size());
    if (blocks_left == 1) {
      balance.push_back(left);
      visit(balance);
      balance.pop_back();
      return;
    }
    for (int64_t count = 1; count <= left - (blocks_left - 1); ++count) {
      balance.push_back(count);
      extend(left - count);
      balance.pop_back();
    }
  };
  extend(layers);
}

// The best cut, found by trying every cut; empty if no cut keeps the options.
Balance brute_force(const Costs& costs, int64_t partitions, const PartitionOptions& options = {}) {
  std::optional<Rank> best;
  for_each_balance(static_cast<int64_t>(costs.size()), partitions, [&](const Balance& balance) {
    std::optional<Rank> candidate = rank(costs, balance, options);
    if (candidate && (!best || *candidate < *best)) best = std::move(candidate);
  });
  return best ? best->balance : Balance{};
}

// --- Random lists

template <typename T>
T draw(T least, T most, std::mt19937_64& random) {
  return std::uniform_int_distribution<T>(least, most)(random);
}

double random_fraction(std::mt19937_64& random) {
  return static_cast<double>(draw<int64_t>(0, (1 << 20) - 1, random)) / kScale;
}

struct Kind {
  std::string name;
  std::function<double(std::mt19937_64&)> cost;
  std::function<void(Costs&)> arrange = [](Costs&) {};
};

const std::vector<Kind>& kinds() {
  const auto up_to = [](int64_t most) {
    return [most](std::mt19937_64& random) {
      return static_cast<double>(draw<int64_t>(0, most, random));
    };
  };
  static const std::vector<Kind> all = {
      {"zeros and ones", up_to(1)},
      {"up to 3", up_to(3)},
      {"up to 100", up_to(100)},
      {"close to each other",
       [](std::mt19937_64& random) { return static_cast<double>(draw(90, 110, random)); }},
      {"fractions", random_fraction},
      {"mostly zeros",
       [](std::mt19937_64& random) { return draw(0, 3, random) ? 0.0 : random_fraction(random); }},
      {"all zeros", [](std::mt19937_64&) { return 0.0; }},
      {"all equal", [](std::mt19937_64&) { return 0.375; }},
      {"of all sizes",
       [](std::mt19937_64& random) {
         return std::ldexp(draw(1, 7, random), draw(-20, 15, random));
       }},
      {"increasing", up_to(20), [](Costs& costs) { std::sort(costs.begin(), costs.end()); }},
      {"decreasing", up_to(20), [](Costs& costs) { std::sort(costs.rbegin(), costs.rend()); }},
      {"one heavy", up_to(5), [](Costs& costs) { costs[costs.size() / 3] = 60; }},
      {"two heavy", up_to(2), [](Costs& costs) { costs.front() = costs.back() = 30; }},
  };
  return all;
}

Costs random_costs(const Kind& kind, size_t layers, std::mt19937_64& random) {
  Costs costs(layers);
  for (double& cost : costs) cost = kind.cost(random);
  kind.arrange(costs);
  return costs;
}

enum class Option { kSlowness, kSizes, kKeepTogether, kSendCosts, kReceiveCosts };
constexpr std::array kOptions = {Option::kSlowness, Option::kSizes, Option::kKeepTogether,
                                 Option::kSendCosts, Option::kReceiveCosts};

void add_random(Option option, const Costs& costs, int64_t partitions, std::mt19937_64& random,
                PartitionOptions* options) {
  const auto layers = static_cast<int64_t>(costs.size());
  const auto cuts = [&] {
    Costs result(costs.size() - 1);
    const double scale = std::max(1.0, std::floor(costs[costs.size() / 2]));
    for (double& cost : result) cost = static_cast<double>(draw(0, 4, random)) * scale / 4;
    return result;
  };
  switch (option) {
    case Option::kSlowness:
      for (int64_t j = 0; j < partitions; ++j) {
        options->slowness.push_back(draw(0, 1, random) ? draw(1, 3, random)
                                                       : 0.5 + random_fraction(random));
      }
      break;
    case Option::kSizes: {
      const int64_t most = draw<int64_t>(1, 10, random);
      for (int64_t i = 0; i < layers; ++i) options->sizes.push_back(draw<int64_t>(0, most, random));
      const int64_t all = std::accumulate(options->sizes.begin(), options->sizes.end(), int64_t{0});
      for (int64_t j = 0; j < partitions; ++j) {
        options->size_limits.push_back(
            draw<int64_t>(all / partitions / 2, 2 * most + all / 2, random));
      }
      break;
    }
    case Option::kKeepTogether:
      for (int64_t k = draw<int64_t>(0, 2, random); k-- > 0;) {
        const int64_t first = draw<int64_t>(0, layers - 1, random);
        options->keep_together.push_back(
            {first, std::min(layers - 1, first + draw<int64_t>(0, 3, random))});
      }
      break;
    case Option::kSendCosts:
      options->send_costs = cuts();
      break;
    case Option::kReceiveCosts:
      options->receive_costs = cuts();
      break;
  }
}

template <typename T>
std::string list_text(const std::vector<T>& values) {
  return ::testing::PrintToString(values);
}

// The call as text, so that a failed case can be repeated by hand.
std::string text(const Costs& costs, int64_t partitions, const PartitionOptions& options = {}) {
  std::string ranges;
  for (const LayerRange& range : options.keep_together) {
    ranges += " " + std::to_string(range.first) + "-" + std::to_string(range.last);
  }
  return "costs " + list_text(costs) + " in " + std::to_string(partitions) + "\nslowness " +
         list_text(options.slowness) + "\nsizes " + list_text(options.sizes) + " limits " +
         list_text(options.size_limits) + "\nkeep together" + ranges + "\nsend " +
         list_text(options.send_costs) + " receive " + list_text(options.receive_costs);
}

double heaviest(const Costs& costs, const Balance& balance) {
  double result = 0.0;
  auto begin = costs.begin();
  for (int64_t count : balance) {
    result = std::max(result, std::accumulate(begin, begin + count, 0.0));
    begin += count;
  }
  return result;
}

void expect_balance(const Balance& balance, size_t layers, int64_t partitions) {
  EXPECT_EQ(static_cast<int64_t>(balance.size()), partitions);
  EXPECT_GE(*std::min_element(balance.begin(), balance.end()), 1);
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}),
            static_cast<int64_t>(layers));
}

// --- torchgpipe's cases

TEST(Partition, OneToSixInTwo) {
  EXPECT_EQ(partition({1, 2, 3, 4, 5, 6}, 2), (Balance{4, 2}));
  EXPECT_EQ(partition({6, 5, 4, 3, 2, 1}, 2), (Balance{2, 4}));
}

TEST(Partition, TwoZerosInTwo) { EXPECT_EQ(partition({0, 0}, 2), (Balance{1, 1})); }

TEST(Partition, RefusesFewerThanOnePartition) {
  EXPECT_THROW(partition({42}, 0), std::invalid_argument);
  EXPECT_THROW(partition({42}, -1), std::invalid_argument);
}

TEST(Partition, RefusesMorePartitionsThanLayers) {
  EXPECT_THROW(partition({}, 1), std::invalid_argument);
  EXPECT_THROW(partition({42}, 2), std::invalid_argument);
}

// --- Ties

TEST(Partition, WithoutCostsTheLayersAreSharedEvenlyAndEarlyPartitionsHaveFewer) {
  EXPECT_EQ(partition(Costs(7, 0.0), 4), (Balance{1, 2, 2, 2}));
  EXPECT_EQ(partition(Costs(12, 0.0), 4), (Balance{3, 3, 3, 3}));
  EXPECT_EQ(partition(Costs(5, 0.0), 5), (Balance{1, 1, 1, 1, 1}));
  EXPECT_EQ(partition(Costs(5, 0.0), 1), (Balance{5}));
}

TEST(Partition, WhatTheHeaviestLayerLeavesIsSharedEvenly) {
  // Every cut behind the first layer has the same heaviest block.
  EXPECT_EQ(partition({100, 1, 1, 1, 1, 1, 1}, 4), (Balance{1, 2, 2, 2}));
  EXPECT_EQ(partition({1, 1, 1, 1, 1, 1, 100}, 4), (Balance{2, 2, 2, 1}));
  EXPECT_EQ(partition({1, 1, 1, 100, 1, 1, 1}, 5), (Balance{1, 2, 1, 1, 2}));
}

TEST(Partition, EvennessIsThatOfWeightsBeforeThatOfLayers) {
  EXPECT_EQ(partition({9, 2, 2, 0, 0, 0, 1}, 3), (Balance{1, 1, 5}));
  EXPECT_EQ(partition({9, 0, 0, 0, 0, 4, 5}, 3), (Balance{3, 3, 1}));
}

// --- Exactness

// There is a suite for each option and one for all options together. Each suite tries lists of
// every kind.
class BruteForceTest : public ::testing::TestWithParam<std::vector<Option>> {};

TEST_P(BruteForceTest, FindsTheSameCut) {
  std::mt19937_64 random = testing::test_random();
  int possible = 0;
  int impossible = 0;
  for (const Kind& kind : kinds()) {
    for (int k = 0; k < 60; ++k) {
      // Only each twentieth list is long (up to 14 layers), because each further layer doubles the
      // number of cuts.
      const size_t layers = draw<size_t>(1, k % 20 == 0 ? 14 : 9, random);
      const Costs costs = random_costs(kind, layers, random);
      for (int64_t partitions = 1; partitions <= static_cast<int64_t>(layers); ++partitions) {
        PartitionOptions options;
        for (Option option : GetParam()) add_random(option, costs, partitions, random, &options);
        const Balance expected = brute_force(costs, partitions, options);
        if (expected.empty()) {
          ++impossible;
          EXPECT_THROW(partition(costs, partitions, options), std::invalid_argument)
              << kind.name << ": " << text(costs, partitions, options);
        } else {
          ++possible;
          EXPECT_EQ(partition(costs, partitions, options), expected)
              << kind.name << ": " << text(costs, partitions, options);
        }
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(possible, 1000);
  RecordProperty("possible", possible);
  RecordProperty("impossible", impossible);
}

constexpr std::array kOptionNames = {"Slowness", "Sizes", "KeepTogether", "SendCosts",
                                     "ReceiveCosts"};

std::string options_name(const ::testing::TestParamInfo<std::vector<Option>>& info) {
  std::string name;
  for (Option option : info.param) name += kOptionNames[static_cast<size_t>(option)];
  return name.empty() ? "None" : name;
}

INSTANTIATE_TEST_SUITE_P(Options, BruteForceTest,
                         ::testing::Values(std::vector<Option>{}, std::vector{Option::kSlowness},
                                           std::vector{Option::kSizes},
                                           std::vector{Option::kKeepTogether},
                                           std::vector{Option::kSendCosts},
                                           std::vector{Option::kReceiveCosts},
                                           std::vector{Option::kSendCosts, Option::kReceiveCosts},
                                           std::vector{Option::kSlowness, Option::kSizes},
                                           std::vector{Option::kSizes, Option::kSendCosts},
                                           std::vector(kOptions.begin(), kOptions.end())),
                         options_name);

// Covers many more lists than brute force can. Only the smallest heaviest block is computed, by
// dynamic programming: the best heaviest block of each prefix for each number of blocks.
double least_heaviest(const Costs& costs, int64_t partitions) {
  const size_t layers = costs.size();
  std::vector<double> best(layers + 1, std::numeric_limits<double>::infinity());
  best[0] = 0.0;
  for (int64_t j = 0; j < partitions; ++j) {
    std::vector<double> next(layers + 1, std::numeric_limits<double>::infinity());
    for (size_t end = 1; end <= layers; ++end) {
      double weight = 0.0;
      for (size_t begin = end; begin-- > 0;) {
        weight += costs[begin];
        next[end] = std::min(next[end], std::max(best[begin], weight));
      }
    }
    best = std::move(next);
  }
  return best[layers];
}

TEST(Partition, NoHeaviestBlockIsLighter) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 3000; ++k) {
    const Kind& kind = kinds()[k % kinds().size()];
    const Costs costs = random_costs(kind, draw<size_t>(1, 40, random), random);
    const int64_t partitions = draw<int64_t>(1, costs.size(), random);
    const Balance balance = partition(costs, partitions);
    expect_balance(balance, costs.size(), partitions);
    // Sums of these costs are exact in double.
    ASSERT_EQ(heaviest(costs, balance), least_heaviest(costs, partitions))
        << kind.name << ": " << text(costs, partitions);
  }
}

// These costs have all their 53 bits, so their sums in double would be rounded.
TEST(Partition, DoublesAreBalancedToTheirLastBits) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 300; ++k) {
    Costs costs(draw<size_t>(1, 60, random));
    for (double& cost : costs) cost = std::uniform_real_distribution<>(0.0, 1.0)(random);
    const int64_t partitions = draw<int64_t>(1, costs.size(), random);
    const double best = least_heaviest(costs, partitions);
    ASSERT_LE(heaviest(costs, partition(costs, partitions)), best * (1 + 1e-14))
        << text(costs, partitions);
  }
}

// Sequential sums in double would make these blocks equally heavy.
TEST(Partition, ASmallCostCountsBesideALargeOne) {
  EXPECT_EQ(partition({0x1p53, 1, 0x1p53}, 2), (Balance{1, 2}));
  EXPECT_EQ(partition({0x1p53 + 2, 1, 0x1p53}, 2), (Balance{1, 2}));
  EXPECT_EQ(partition({0x1p53, 1, 0x1p53 + 2}, 2), (Balance{2, 1}));
}

// --- Lists for which torchgpipe's own partitioner fails

TEST(WhereTorchgpipeFails, KnownLists) {
  const auto blocks = [](const Costs& costs, int64_t partitions) {
    std::vector<int64_t> result;
    for (const auto& [begin, end] : torchgpipe_partition(costs, partitions).blocks) {
      result.push_back(end - begin);
    }
    return result;
  };
  EXPECT_EQ(blocks(Costs(7, 1.0), 4), (Balance{1, 1, 1, 4}));
  EXPECT_EQ(partition(Costs(7, 1.0), 4), (Balance{1, 2, 2, 2}));
  EXPECT_EQ(blocks(Costs(15, 1.0), 8), (Balance{1, 1, 1, 1, 1, 1, 1, 8}));
  EXPECT_EQ(partition(Costs(15, 1.0), 8), (Balance{1, 2, 2, 2, 2, 2, 2, 2}));

  EXPECT_TRUE(torchgpipe_partition({1, 1, 2, 2}, 3).has_an_empty_block());
  EXPECT_EQ(partition({1, 1, 2, 2}, 3), (Balance{2, 1, 1}));
  EXPECT_TRUE(torchgpipe_partition({1, 1, 1, 2, 2}, 4).has_a_layer_twice_or_never(5));
  EXPECT_EQ(partition({1, 1, 1, 2, 2}, 4), (Balance{1, 2, 1, 1}));
  EXPECT_FALSE(torchgpipe_partition({1, 1, 1, 1, 2, 2}, 5).ends);
  EXPECT_EQ(partition({1, 1, 1, 1, 2, 2}, 5), (Balance{1, 1, 2, 1, 1}));
}

TEST(WhereTorchgpipeFails, RandomLists) {
  std::mt19937_64 random = testing::test_random();
  int empty = 0;
  int twice = 0;
  int endless = 0;
  int heavier = 0;
  int wrong = 0;
  for (int k = 0; k < 20000; ++k) {
    Costs costs(draw<size_t>(1, 10, random));
    for (double& cost : costs) cost = static_cast<double>(draw(1, 3, random));
    const auto layers = static_cast<int64_t>(costs.size());
    const int64_t partitions = draw<int64_t>(1, layers, random);
    const TorchgpipesAnswer theirs = torchgpipe_partition(costs, partitions);
    const Balance ours = partition(costs, partitions);
    if (!theirs.ends) {
      ++endless;
    } else if (theirs.has_a_layer_twice_or_never(layers)) {
      ++twice;
    } else if (theirs.has_an_empty_block()) {
      ++empty;
    } else {
      Balance balance;
      for (const auto& [begin, end] : theirs.blocks) balance.push_back(end - begin);
      heavier += heaviest(costs, balance) > heaviest(costs, ours);
      EXPECT_LE(heaviest(costs, ours), heaviest(costs, balance)) << text(costs, partitions);
      continue;
    }
    ++wrong;
    ASSERT_EQ(ours, brute_force(costs, partitions)) << text(costs, partitions);
  }
  EXPECT_GT(empty, 0);
  EXPECT_GT(twice, 0);
  EXPECT_GT(endless, 0);
  EXPECT_GT(heavier, 0);
  std::printf(
      "torchgpipe's partitioner, 20000 lists: %d with an empty block, %d no partition, "
      "%d endless, %d heavier than need be\n",
      empty, twice, endless, heavier);
}

// --- Properties

TEST(Properties, ScalingByAPowerOfTwoKeepsTheCuts) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 500; ++k) {
    Costs costs(draw<size_t>(1, 30, random));
    for (double& cost : costs) cost = std::uniform_real_distribution<>(1.0, 2.0)(random);
    const int64_t partitions = draw<int64_t>(1, costs.size(), random);
    Costs scaled = costs;
    const int exponent = draw(-1022, 1022, random);
    for (double& cost : scaled) cost = std::ldexp(cost, exponent);
    EXPECT_EQ(partition(scaled, partitions), partition(costs, partitions))
        << "times 2^" << exponent << ": " << text(costs, partitions);
  }
}

TEST(Properties, MorePartitionsAreNeverHeavier) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 200; ++k) {
    const Kind& kind = kinds()[k % kinds().size()];
    const Costs costs = random_costs(kind, 25, random);
    double before = std::numeric_limits<double>::infinity();
    for (int64_t partitions = 1; partitions <= 25; ++partitions) {
      const double now = heaviest(costs, partition(costs, partitions));
      EXPECT_LE(now, before) << text(costs, partitions);
      before = now;
    }
    EXPECT_EQ(before, *std::max_element(costs.begin(), costs.end()));
  }
}

TEST(Properties, TheMirrorImageIsAsGood) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 300; ++k) {
    const Kind& kind = kinds()[k % kinds().size()];
    const Costs costs = random_costs(kind, draw<size_t>(1, 30, random), random);
    const int64_t partitions = draw<int64_t>(1, costs.size(), random);
    const Costs mirrored(costs.rbegin(), costs.rend());
    const auto sorted_rank = [&](const Costs& layer_costs) {
      const Rank found = *rank(layer_costs, partition(layer_costs, partitions), {});
      return std::make_tuple(found.longest, found.unevenness, found.squared_layers);
    };
    EXPECT_TRUE(sorted_rank(costs) == sorted_rank(mirrored)) << text(costs, partitions);
  }
}

// Options that restrict nothing use other paths of the search, which must find the same cut.
TEST(Properties, OptionsWithoutEffectChangeNothing) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 300; ++k) {
    const Kind& kind = kinds()[k % kinds().size()];
    const Costs costs = random_costs(kind, draw<size_t>(1, 40, random), random);
    const int64_t partitions = draw<int64_t>(1, costs.size(), random);
    PartitionOptions options;
    options.slowness.assign(partitions, 3.0);
    options.sizes.assign(costs.size(), 1);
    options.size_limits.assign(partitions, costs.size());
    options.keep_together = {{0, 0}};
    const Balance expected = partition(costs, partitions);
    EXPECT_EQ(partition(costs, partitions, options), expected) << text(costs, partitions);
    options.slowness.clear();
    options.send_costs.assign(costs.size() - 1, 0.0);
    options.receive_costs.assign(costs.size() - 1, 0.0);
    EXPECT_EQ(partition(costs, partitions, options), expected) << text(costs, partitions);
  }
}

// --- Magnitudes

TEST(Magnitudes, NothingOverflows) {
  constexpr double kMax = std::numeric_limits<double>::max();
  constexpr double kMin = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(partition(Costs(9, kMax), 3), (Balance{3, 3, 3}));
  EXPECT_EQ(partition(Costs(9, kMin), 3), (Balance{3, 3, 3}));
  EXPECT_EQ(partition({kMin, 2 * kMin, 3 * kMin}, 2), (Balance{2, 1}));
  EXPECT_EQ(partition({1e300, 1e-300, 1e300, 1e-300}, 2), (Balance{2, 2}));
  // The small costs are less than half a unit, so only the numbers of layers count.
  EXPECT_EQ(partition({1e-300, 1e-300, 1e-300, 1e300}, 2), (Balance{2, 2}));
  EXPECT_EQ(partition({0.0, -0.0, 1.0, 2.0}, 2), (Balance{3, 1}));

  PartitionOptions options;
  options.slowness = {1e300, 1e-300, kMin};
  EXPECT_EQ(partition({kMax, kMax, kMax}, 3, options), (Balance{1, 1, 1}));
  EXPECT_EQ(partition(Costs(9, kMax), 3, options).front(), 1);
  options.slowness = {kMax, kMax, kMax};
  options.send_costs = options.receive_costs = Costs(8, kMax);
  EXPECT_EQ(partition(Costs(9, kMax), 3, options), (Balance{3, 3, 3}));
}

TEST(Magnitudes, SizesUpToTheLargestNumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  PartitionOptions options;
  options.sizes = {kMax - 2, 1, 1};
  options.size_limits = {kMax, kMax};
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{1, 2}));
  options.size_limits = {kMax - 1, 1};
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{2, 1}));
}

// --- Options, one at a time

TEST(Options, ASlowPartitionGetsLess) {
  PartitionOptions options;
  options.slowness = {2, 1};
  EXPECT_EQ(partition(Costs(9, 1.0), 2, options), (Balance{3, 6}));
  options.slowness = {1, 2};
  EXPECT_EQ(partition(Costs(9, 1.0), 2, options), (Balance{6, 3}));
  // Only the ratios of the slownesses matter.
  options.slowness = {1e-200, 2e-200};
  EXPECT_EQ(partition(Costs(9, 1.0), 2, options), (Balance{6, 3}));
}

// The last partition takes longest in any case, so the first two could share the fifteen layers in
// any way. They get equal times: the second takes twice as long for a layer.
TEST(Options, EvennessUnderSlownessIsThatOfTimes) {
  PartitionOptions options;
  options.slowness = {1, 2, 1};
  Costs costs(15, 1.0);
  costs.push_back(100);
  EXPECT_EQ(partition(costs, 3, options), (Balance{10, 5, 1}));
}

TEST(Options, APartitionKeepsItsSizeLimit) {
  PartitionOptions options;
  options.sizes = {1, 1, 1, 1, 1, 1};
  options.size_limits = {2, 9};
  EXPECT_EQ(partition(Costs(6, 1.0), 2, options), (Balance{2, 4}));
}

// The message gives the plainest reason that holds.
TEST(Options, WhySizeLimitsCannotBeKeptIsTold) {
  const auto why = [](std::vector<int64_t> sizes, std::vector<int64_t> limits) -> std::string {
    PartitionOptions options;
    options.sizes = std::move(sizes);
    options.size_limits = std::move(limits);
    try {
      partition(Costs(options.sizes.size(), 1.0), static_cast<int64_t>(options.size_limits.size()),
                options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(why({1, 5, 1}, {4, 4}), HasSubstr("layer 1 alone needs 5, the largest limit is 4"));
  EXPECT_THAT(why({3, 3, 3}, {4, 4}), HasSubstr("all layers need 9, the limits allow 8 in all"));
  // The limits allow exactly what all layers need, and yet two layers are too much for either.
  EXPECT_THAT(why({3, 3, 2}, {4, 4}),
              HasSubstr("wherever the cuts are, a partition is too large; it would take 1 more"));
  EXPECT_EQ(why({3, 3, 2}, {4, 5}), "");
}

// Not every layer fits into every partition, so the possible ends of a partition are not an
// interval.
TEST(Options, ALayerMayFitOnlyOnePartition) {
  PartitionOptions options;
  options.sizes = {1, 1, 10, 1};
  options.size_limits = {10, 1, 11};
  EXPECT_EQ(partition({1, 1, 1, 1}, 3, options), (Balance{1, 1, 2}));
  options.size_limits = {10, 10, 1};
  EXPECT_EQ(partition({1, 1, 1, 1}, 3, options), (Balance{2, 1, 1}));
}

TEST(Options, LayersStayTogether) {
  PartitionOptions options;
  options.keep_together = {{2, 4}};
  EXPECT_EQ(partition(Costs(6, 1.0), 2, options), (Balance{2, 4}));
  options.keep_together = {{2, 3}, {3, 4}, {0, 0}, {5, 5}};
  EXPECT_EQ(partition(Costs(6, 1.0), 2, options), (Balance{2, 4}));
  options.keep_together = {{0, 5}};
  EXPECT_EQ(partition(Costs(6, 1.0), 1, options), (Balance{6}));
}

TEST(Options, AnExpensiveCutIsAvoided) {
  PartitionOptions options;
  options.send_costs = {0, 0, 5, 0, 0};
  EXPECT_EQ(partition(Costs(6, 1.0), 2, options), (Balance{2, 4}));
  options.receive_costs = {5, 5, 5, 0, 5};
  EXPECT_EQ(partition(Costs(6, 1.0), 2, options), (Balance{4, 2}));
}

// A transfer also takes time on a slow device, but not more than on a fast one.
TEST(Options, CutsCostTheSameWhateverTheSlowness) {
  PartitionOptions options;
  options.slowness = {4, 1};
  options.send_costs = {4, 1};
  // Cut behind the first layer, the partitions take 4 + 4 and 2. Behind the second layer it would
  // be 8 + 1 and 1.
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{1, 2}));
  options.send_costs = {6, 1};
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{2, 1}));
  // The cut is the same if all devices are far faster than the one on which the costs were
  // measured.
  options.slowness = {0x4p-20, 0x1p-20};
  options.send_costs = {0x4p-20, 0x1p-20};
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{1, 2}));
  options.send_costs = {0x6p-20, 0x1p-20};
  EXPECT_EQ(partition({1, 1, 1}, 2, options), (Balance{2, 1}));
}

// --- Large ones

TEST(Large, AThousandLayersAndAnyNumberOfPartitions) {
  std::mt19937_64 random = testing::test_random();
  for (const Kind& kind : kinds()) {
    const Costs costs = random_costs(kind, 1000, random);
    for (int64_t partitions : {1, 2, 64, 333, 999, 1000}) {
      expect_balance(partition(costs, partitions), costs.size(), partitions);
    }
  }
}

}  // namespace
}  // namespace gpipe::balance
