#include "balance/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "gpipe/testing/seed.h"

namespace gpipe::balance {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

TEST(CachingAllocator, TakesSegmentsOfThreeKinds) {
  CachingAllocator device;
  (void)device.allocate(1);
  EXPECT_EQ(device.reserved(), 2 * kMiB);
  EXPECT_EQ(device.allocated(), 512);
  (void)device.allocate(kMiB);
  EXPECT_EQ(device.reserved(), 2 * kMiB) << "fits beside it";
  (void)device.allocate(kMiB);
  EXPECT_EQ(device.reserved(), 4 * kMiB) << "another 1 MiB does not fit: 512 bytes are missing";
  (void)device.allocate(kMiB + 1);
  EXPECT_EQ(device.reserved(), 24 * kMiB);
  (void)device.allocate(9 * kMiB);
  EXPECT_EQ(device.reserved(), 24 * kMiB);
  (void)device.allocate(10 * kMiB);
  EXPECT_EQ(device.reserved(), 34 * kMiB) << "what is left of 20 MiB is too small by 512 bytes";
  (void)device.allocate(11 * kMiB + 1);
  EXPECT_EQ(device.reserved(), 46 * kMiB) << "in multiples of 2 MiB";
}

TEST(CachingAllocator, KeepsWhatIsGivenBackAndUsesItAgain) {
  CachingAllocator device;
  auto* const block = device.allocate(100 * kMiB);
  device.free(block);
  EXPECT_EQ(device.allocated(), 0);
  EXPECT_EQ(device.reserved(), 100 * kMiB);
  EXPECT_EQ(device.allocate(100 * kMiB), block);
  EXPECT_EQ(device.reserved(), 100 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestThatFitsAndCutsIt) {
  CachingAllocator device;
  auto* const large = device.allocate(60 * kMiB);
  auto* const middle = device.allocate(40 * kMiB);
  device.free(large);
  device.free(middle);
  EXPECT_EQ(device.allocate(39 * kMiB), middle);
  EXPECT_EQ(device.allocated(), 40 * kMiB) << "1 MiB more is not worth a cut";
  EXPECT_EQ(device.allocate(30 * kMiB), large);
  EXPECT_NE(device.allocate(30 * kMiB), nullptr);
  EXPECT_EQ(device.reserved(), 100 * kMiB) << "the other half";
}

TEST(CachingAllocator, FreeNeighborsJoin) {
  CachingAllocator device;
  std::vector<CachingAllocator::Block*> blocks;
  auto* const whole = device.allocate(90 * kMiB);
  device.free(whole);
  for (int k = 0; k < 3; ++k) blocks.push_back(device.allocate(30 * kMiB));
  EXPECT_EQ(device.reserved(), 90 * kMiB);
  device.free(blocks[0]);
  device.free(blocks[2]);
  (void)device.allocate(60 * kMiB);
  EXPECT_EQ(device.reserved(), 150 * kMiB)
      << "the two free blocks are not neighbors, so they cannot be joined";
  device.free(blocks[1]);
  (void)device.allocate(90 * kMiB);
  EXPECT_EQ(device.reserved(), 150 * kMiB);
}

TEST(CachingAllocator, StreamsDoNotShareBlocks) {
  CachingAllocator device;
  device.free(device.allocate(50 * kMiB, /*stream=*/0));
  (void)device.allocate(50 * kMiB, /*stream=*/1);
  EXPECT_EQ(device.reserved(), 100 * kMiB);
}

TEST(CachingAllocator, GivesBackWhatIsFreeBeforeItRunsOut) {
  CachingAllocator device(100 * kMiB);
  device.free(device.allocate(60 * kMiB));
  auto* const held = device.allocate(70 * kMiB);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(device.reserved(), 70 * kMiB);
  EXPECT_EQ(device.peak_reserved(), 70 * kMiB);
  EXPECT_EQ(device.allocate(40 * kMiB), nullptr);
  device.free(held);
  EXPECT_NE(device.allocate(100 * kMiB), nullptr);
}

TEST(CachingAllocator, AnyOrderKeepsTheBooks) {
  std::mt19937_64 random(testing::test_seed());
  for (int round = 0; round < 20; ++round) {
    CachingAllocator device(round % 2 == 0 ? 0 : 600 * kMiB);
    std::vector<std::pair<CachingAllocator::Block*, int64_t>> held;
    int64_t bytes = 0;
    for (int k = 0; k < 3000; ++k) {
      if (!held.empty() && random() % 2 == 0) {
        std::swap(held[random() % held.size()], held.back());
        device.free(held.back().first);
        bytes -= held.back().second;
        held.pop_back();
      } else {
        const int64_t size = 1 + static_cast<int64_t>(random() % (1 << (10 + random() % 16)));
        auto* const block = device.allocate(size, static_cast<int64_t>(random() % 3));
        if (block == nullptr) continue;
        held.emplace_back(block, size);
        bytes += size;
      }
      ASSERT_GE(device.allocated(), bytes);
      ASSERT_LE(device.allocated(), device.reserved());
      ASSERT_LE(device.reserved(), device.peak_reserved());
    }
    for (const auto& [block, size] : held) device.free(block);
    EXPECT_EQ(device.allocated(), 0);
    // All free blocks have joined, so a device with room for one segment can give back all others.
    if (round % 2 == 1) {
      EXPECT_NE(device.allocate(600 * kMiB), nullptr);
      EXPECT_EQ(device.reserved(), 600 * kMiB);
    }
  }
}

TEST(PeakReserved, FollowsATrace) {
  MemoryTrace trace;
  trace.devices = 2;
  trace.turns.resize(2);
  trace.blocks = {{30 * kMiB, 0, MemoryUse::kActivations, -1},
                  {30 * kMiB, 0, MemoryUse::kActivations, -1},
                  {30 * kMiB, 0, MemoryUse::kReceived, 1},
                  {0, 1, MemoryUse::kData, -1},
                  {50 * kMiB, 1, MemoryUse::kData, -1}};
  trace.events = {{0, 0, false}, {0, 0, true},  {1, 1, false}, {1, 1, true},
                  {2, 1, false}, {3, 1, false}, {4, 1, false}, {3, 1, true}};
  EXPECT_EQ(peak_reserved(trace), (std::vector<int64_t>{60 * kMiB, 50 * kMiB}));
  EXPECT_EQ(peak_reserved(trace, 40 * kMiB), (std::vector<int64_t>{30 * kMiB, -1}));
}

}  // namespace
}  // namespace gpipe::balance
