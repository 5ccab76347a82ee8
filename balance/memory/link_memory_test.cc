#include "balance/memory/link_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

// [device] Two steps of the schedule, in which each stage sends `bytes` to the next and the last
// one. Stage j is on device j modulo `devices`. With `skip`, the first stage also sends to the
// last.
std::vector<LinkMemory> links_of(const Schedule& schedule, int64_t bytes, int64_t devices = 0,
                                 bool skip = false) {
  if (devices == 0) devices = schedule.stages();
  std::vector<TimedAction> actions;
  for (const auto& worker : simulate(schedule, {uniform_cost({1.0, 2.0, 1.0, 1.0}), {}}).workers) {
    actions.insert(actions.end(), worker.begin(), worker.end());
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const TimedAction& a, const TimedAction& b) { return a.start < b.start; });
  MemoryTrace trace;
  trace.devices = static_cast<int32_t>(devices);
  const auto stages = static_cast<int32_t>(schedule.stages());
  for (int step = 0; step < 2; ++step) {
    trace.turns.push_back({});
    for (const TimedAction& timed : actions) {
      const int32_t stage = timed.action.stage;
      const auto send = [&](int32_t to) {
        if (to < 0 || to >= stages) return;
        const auto block = static_cast<int32_t>(trace.blocks.size());
        trace.events.push_back({block, static_cast<int32_t>(trace.turns.size()), false});
        trace.blocks.push_back({bytes, static_cast<int32_t>(to % devices), MemoryUse::kReceived,
                                static_cast<int32_t>(stage % devices)});
      };
      const bool is_forward = timed.action.kind == ActionKind::kForward;
      send(is_forward ? stage + 1 : stage - 1);
      if (skip && is_forward && stage == 0) send(stages - 1);
      trace.turns.push_back({Turn::Kind::kAction, timed.action});
    }
    trace.turns.push_back({Turn::Kind::kOptimizer, {}});
  }
  std::vector<int64_t> device_of_stage(schedule.stages());
  for (size_t j = 0; j < device_of_stage.size(); ++j) {
    device_of_stage[j] = static_cast<int64_t>(j) % devices;
  }
  return link_memory(trace, device_of_stage);
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

// Stages 1 and 3 are on one device. What stage 0 skips to stage 3 waits for that stage, not for
// stage 1.
TEST(LinkMemory, AMessageMayBeForALaterStageOfItsDevice) {
  const std::vector<int64_t> waiting =
      in_mib(links_of(schedule_by_name("interleaved", 4, 4), kMiB, 2, true), &LinkMemory::waiting);
  EXPECT_GE(waiting.front(), 7);
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
