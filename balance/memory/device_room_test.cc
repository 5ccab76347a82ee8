#include "balance/memory/device_room.h"

#include <gtest/gtest.h>

#include <optional>

#include "balance/memory/caching_allocator.h"

namespace gpipe::balance {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The plan of a device that takes 30 MiB, gives them back, and takes 40 MiB. If there is room for
// both, the allocator keeps the segment of the first block.
MemoryPlan plan_on(c10::DeviceType type) {
  MemoryPlan plan;
  plan.device_type = type;
  plan.trace.devices = 1;
  plan.trace.turns.resize(1);
  for (const int64_t bytes : {30 * kMiB, 40 * kMiB}) {
    MemoryBlock block;
    block.bytes = bytes;
    plan.trace.blocks.push_back(block);
  }
  for (const auto& [block, free] : {std::pair(0, false), {0, true}, {1, false}, {1, true}}) {
    MemoryEvent event;
    event.block = block;
    event.free = free;
    plan.trace.events.push_back(event);
  }
  plan.devices.resize(1);
  plan.devices[0].peak.bytes = 40 * kMiB;
  plan.devices[0].reserved = peak_reserved(plan.trace)[0];
  return plan;
}

TEST(DeviceRoom, OnAnAcceleratorReservedBytesCount) {
  const MemoryPlan plan = plan_on(c10::kCUDA);
  EXPECT_EQ(bytes_without_limit(plan, 0), 70 * kMiB);
  EXPECT_EQ(bytes_within(plan, 0, 70 * kMiB), 70 * kMiB);
}

TEST(DeviceRoom, TheAllocatorGivesBackWhatItHasCachedBeforeItRunsOut) {
  const MemoryPlan plan = plan_on(c10::kCUDA);
  for (const int64_t room : {70 * kMiB - 1, 50 * kMiB, 40 * kMiB}) {
    EXPECT_EQ(bytes_within(plan, 0, room), 40 * kMiB) << room;
  }
  EXPECT_EQ(bytes_within(plan, 0, 40 * kMiB - 1), std::nullopt);
}

TEST(DeviceRoom, OnTheCpuTensorsCount) {
  const MemoryPlan plan = plan_on(c10::kCPU);
  EXPECT_EQ(bytes_without_limit(plan, 0), 40 * kMiB);
  EXPECT_EQ(bytes_within(plan, 0, 40 * kMiB), 40 * kMiB);
  EXPECT_EQ(bytes_within(plan, 0, 40 * kMiB - 1), std::nullopt);
}

TEST(DeviceRoom, NoRoomIsNotAnUnlimitedOne) {
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    for (const int64_t room : {0, -1}) {
      EXPECT_EQ(bytes_within(plan_on(type), 0, room), std::nullopt) << room;
    }
  }
}

TEST(DeviceRoom, TheLeastRoomIsThatOfTheLargestBlock) {
  EXPECT_EQ(least_room(plan_on(c10::kCUDA), 0, 30 * kMiB, 70 * kMiB, 1), 40 * kMiB);
  EXPECT_EQ(least_room(plan_on(c10::kCUDA), 0, 30 * kMiB, 70 * kMiB, 15 * kMiB), 40 * kMiB);
  EXPECT_EQ(least_room(plan_on(c10::kCUDA), 0, 30 * kMiB, 70 * kMiB, 40 * kMiB), 70 * kMiB);
}

}  // namespace
}  // namespace gpipe::balance
