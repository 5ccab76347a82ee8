#include "balance/memory/link_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

// [device] Two steps of the schedule, in which each stage sends `bytes` to the next and the last
// one. Each has a device of its own.
std::vector<LinkMemory> links_of(const Schedule& schedule, int64_t bytes) {
  std::vector<TimedAction> actions;
  for (const auto& worker : simulate(schedule, {uniform_cost({1.0, 2.0, 1.0, 1.0}), {}}).workers) {
    actions.insert(actions.end(), worker.begin(), worker.end());
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const TimedAction& a, const TimedAction& b) { return a.start < b.start; });
  MemoryTrace trace;
  trace.devices = static_cast<int32_t>(schedule.stages());
  for (int step = 0; step < 2; ++step) {
    trace.turns.push_back({});
    for (const TimedAction& timed : actions) {
      const int32_t stage = timed.action.stage;
      const int32_t to = timed.action.kind == ActionKind::kForward ? stage + 1 : stage - 1;
      const auto block = static_cast<int32_t>(trace.blocks.size());
      if (to >= 0 && to < trace.devices) {
        trace.events.push_back({block, static_cast<int32_t>(trace.turns.size()), false});
        trace.blocks.push_back({bytes, to, MemoryUse::kReceived, stage});
      }
      trace.turns.push_back({Turn::Kind::kAction, timed.action});
    }
    trace.turns.push_back({Turn::Kind::kOptimizer, {}});
  }
  std::vector<int64_t> devices(schedule.stages());
  std::iota(devices.begin(), devices.end(), int64_t{0});
  return link_memory(trace, devices);
}

std::vector<int64_t> in_mib(const std::vector<LinkMemory>& links, int64_t LinkMemory::*part) {
  std::vector<int64_t> result;
  for (const LinkMemory& each : links) result.push_back(each.*part / kMiB);
  return result;
}

TEST(LinkMemory, WaitsForReceiversAsTheScheduleAllows) {
  // Nothing tells a stage that the next one has begun before its first gradient comes.
  EXPECT_THAT(in_mib(links_of(Schedule::gpipe(3, 6), kMiB), &LinkMemory::waiting),
              ElementsAre(6, 6, 6));
  // The next forward that comes tells which gradients the stage before has had.
  const std::vector<int64_t> waiting =
      in_mib(links_of(Schedule::one_f_one_b(3, 12), kMiB), &LinkMemory::waiting);
  EXPECT_EQ(waiting.front(), 3) << "as many as are in flight";
  EXPECT_LE(*std::max_element(waiting.begin(), waiting.end()), 5);
}

TEST(LinkMemory, IsAheadByStepsOrBytesOrTwoCalls) {
  const Schedule schedule = Schedule::one_f_one_b(3, 64);
  // A step of a stage at the end has one message, of the middle one two. 64 MiB are more than eight
  // steps of 1 MiB.
  EXPECT_THAT(in_mib(links_of(schedule, kMiB), &LinkMemory::ahead), ElementsAre(65, 66, 65));
  EXPECT_THAT(in_mib(links_of(schedule, 100 * kMiB), &LinkMemory::ahead),
              ElementsAre(900, 1800, 900));
  EXPECT_THAT(in_mib(links_of(Schedule::one_f_one_b(3, 2), kMiB), &LinkMemory::ahead),
              ElementsAre(8, 16, 8));
}

TEST(LinkMemory, HasBuffersForEachEdge) {
  EXPECT_THAT(in_mib(links_of(Schedule::gpipe(3, 2), kMiB), &LinkMemory::buffers),
              ElementsAre(64, 128, 64));
  EXPECT_THAT(in_mib(links_of(Schedule::gpipe(1, 2), kMiB), &LinkMemory::buffers), ElementsAre(0));
}

}  // namespace
}  // namespace gpipe::balance
