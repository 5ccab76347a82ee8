#include "gpipe/distributed/packets/link_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

Edge edge(int64_t from, int64_t to, int32_t lane = 0) {
  Edge result;
  result.from = from;
  result.to = to;
  result.lane = lane;
  return result;
}

// The number of edges of the rank that is in most of them.
size_t most_edges(const std::vector<Edge>& edges) {
  std::map<int64_t, size_t> count;
  size_t most = 0;
  for (const Edge& edge : edges) {
    most = std::max({most, ++count[edge.from], ++count[edge.to]});
  }
  return most;
}

// Checks the rounds of `edges`, and returns how many there are.
size_t checked_rounds(const std::vector<Edge>& edges) {
  const std::vector<std::vector<Edge>> rounds = link_rounds(edges);
  std::set<Edge> found;
  for (const std::vector<Edge>& round : rounds) {
    std::set<int64_t> ranks;
    for (const Edge& edge : round) {
      EXPECT_TRUE(ranks.insert(edge.from).second) << edge.from << " is in two links of a round";
      EXPECT_TRUE(ranks.insert(edge.to).second) << edge.to << " is in two links of a round";
      EXPECT_TRUE(found.insert(edge).second);
    }
    EXPECT_FALSE(round.empty());
  }
  EXPECT_EQ(found.size(), edges.size());
  EXPECT_GE(rounds.size(), most_edges(edges));
  EXPECT_LE(rounds.size(), 2 * most_edges(edges) - 1);
  return rounds.size();
}

TEST(LinkRounds, WithoutEdgesThereAreNone) { EXPECT_TRUE(link_rounds({}).empty()); }

// The activations and the gradients of a chain of any length take four rounds: a rank in the middle
// has four links.
TEST(LinkRounds, AChainTakesAsManyRoundsAsARankHasLinks) {
  for (const int64_t size : {3, 8, 64}) {
    std::vector<Edge> edges;
    for (int64_t rank = 0; rank + 1 < size; ++rank) {
      edges.push_back(edge(rank, rank + 1));
      edges.push_back(edge(rank + 1, rank));
    }
    EXPECT_EQ(checked_rounds(edges), 4U) << size;
  }
}

TEST(LinkRounds, LinksOfTwoRanksComeOneAfterAnother) {
  EXPECT_EQ(checked_rounds({edge(0, 1), edge(0, 1, 1), edge(1, 0), edge(1, 0, 1)}), 4U);
}

TEST(LinkRounds, OfAnyGraphAreAtMostTwiceTheLinksOfARankAndTheSameInAnyOrder) {
  std::mt19937_64 random(gpipe::testing::test_seed());
  for (int graph = 0; graph < 300; ++graph) {
    const auto ranks = static_cast<int64_t>(2 + random() % 15);
    std::set<Edge> drawn;
    const size_t count = 1 + random() % 60;
    for (size_t k = 0; k < count; ++k) {
      const auto from = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
      const auto to = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
      if (from != to) drawn.insert(edge(from, to, static_cast<int32_t>(random() % 3)));
    }
    if (drawn.empty()) continue;
    std::vector<Edge> edges(drawn.begin(), drawn.end());
    checked_rounds(edges);
    const auto rounds = link_rounds(edges);
    std::shuffle(edges.begin(), edges.end(), random);
    const auto again = link_rounds(edges);
    ASSERT_EQ(again.size(), rounds.size());
    for (size_t round = 0; round < rounds.size(); ++round) {
      const auto is_same = [](const Edge& a, const Edge& b) { return !(a < b) && !(b < a); };
      EXPECT_TRUE(std::equal(again[round].begin(), again[round].end(), rounds[round].begin(),
                             rounds[round].end(), is_same));
    }
  }
}

}  // namespace
}  // namespace gpipe::distributed
