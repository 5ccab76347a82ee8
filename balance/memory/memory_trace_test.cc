#include "balance/memory/memory_trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gpipe::balance {
namespace {

MemoryTrace sample() {
  MemoryTrace trace;
  trace.devices = 2;
  trace.turns = {
      {}, {Turn::Kind::kAction, {ActionKind::kBackward, 1, 2}}, {Turn::Kind::kOptimizer, {}}};
  trace.blocks = {{10, 0, MemoryUse::kParameters, -1},
                  {5, 0, MemoryUse::kWorkspace, -1},
                  {7, 1, MemoryUse::kReceived, 0},
                  {6, 0, MemoryUse::kOptimizerState, -1}};
  trace.events = {{0, 0, false}, {1, 1, false}, {2, 1, false},
                  {1, 1, true},  {3, 2, false}, {2, 2, true}};
  return trace;
}

TEST(MemoryTrace, PeaksAreOfEachDeviceWithWhatTheyConsistOf) {
  const std::vector<MemoryPeak> result = peaks(sample());
  ASSERT_EQ(result.size(), 2);
  EXPECT_EQ(result[0].bytes, 16);
  EXPECT_EQ(result[0].turn, 2);
  EXPECT_EQ(result[0].of(MemoryUse::kParameters), 10);
  EXPECT_EQ(result[0].of(MemoryUse::kOptimizerState), 6);
  EXPECT_EQ(result[0].of(MemoryUse::kWorkspace), 0);
  EXPECT_EQ(result[1].bytes, 7);
  EXPECT_EQ(result[1].turn, 1);
}

TEST(MemoryTrace, CurvesHaveTheMostOfEachTurn) {
  const std::vector<std::vector<MemoryPeak>> result = curves(sample());
  std::vector<std::vector<int64_t>> bytes;
  for (const auto& device : result) {
    auto& row = bytes.emplace_back();
    for (const MemoryPeak& peak : device) row.push_back(peak.bytes);
  }
  EXPECT_EQ(bytes, (std::vector<std::vector<int64_t>>{{10, 15, 16}, {0, 7, 7}}));
  EXPECT_EQ(result[0][1].of(MemoryUse::kWorkspace), 5);
  EXPECT_EQ(result[0][2].of(MemoryUse::kWorkspace), 0);
  EXPECT_EQ(result[1][2].turn, 2);
}

TEST(MemoryTrace, Names) {
  const MemoryTrace trace = sample();
  EXPECT_EQ(name_of(trace.turns[0]), "the start");
  EXPECT_EQ(name_of(trace.turns[1]), "B1.2");
  EXPECT_EQ(name_of(trace.turns[2]), "the optimizer");
  std::set<std::string> names;
  for (int k = 0; k < kMemoryUses; ++k) names.insert(name_of(static_cast<MemoryUse>(k)));
  EXPECT_EQ(names.size(), kMemoryUses);
}

}  // namespace
}  // namespace gpipe::balance
