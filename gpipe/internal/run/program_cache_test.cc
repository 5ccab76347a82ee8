#include "gpipe/internal/run/program_cache.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

using Half = ProgramCache::Half;

TEST(ProgramCacheTest, CompilesOnceForEachScheduleAndHalf) {
  ProgramCache cache(Routes::create(2));
  const auto* whole = &cache.get(Schedule::gpipe(2, 3), Half::kBoth);
  const auto* forwards = &cache.get(Schedule::gpipe(2, 3), Half::kForward);
  EXPECT_NE(whole, forwards);
  EXPECT_NE(whole, &cache.get(Schedule::gpipe(2, 4), Half::kBoth));
  EXPECT_EQ(whole, &cache.get(Schedule::gpipe(2, 3), Half::kBoth));
  EXPECT_EQ(forwards, &cache.get(Schedule::gpipe(2, 3), Half::kForward));
  EXPECT_EQ(whole->program.workers[0].size(), 6u);
  EXPECT_EQ(forwards->program.workers[0].size(), 3u);
  EXPECT_EQ(cache.get(Schedule::gpipe(2, 3), Half::kBackward).program.workers[0].size(), 3u);
}

TEST(ProgramCacheTest, KeepsTheLatest) {
  ProgramCache cache(Routes::create(2));
  for (int64_t micro_batches = 1; micro_batches <= 40; ++micro_batches) {
    const auto& compiled = cache.get(Schedule::gpipe(2, micro_batches), Half::kBoth);
    EXPECT_EQ(compiled.schedule.micro_batches(), micro_batches);
    EXPECT_EQ(&compiled, &cache.get(Schedule::gpipe(2, micro_batches), Half::kBoth));
  }
}

TEST(ProgramCacheTest, KnowsWhichBackwardsFollowTheirForwards) {
  ProgramCache cache(Routes::create(2));
  using Rows = std::vector<std::vector<bool>>;
  EXPECT_EQ(cache.get(Schedule::one_f_one_b(2, 3), Half::kBoth).follows_at_once,
            (Rows{{false, false, false}, {true, true, true}}));
  // A half of a schedule has the flags of the whole schedule.
  EXPECT_EQ(cache.get(Schedule::gpipe(2, 3), Half::kForward).follows_at_once,
            (Rows{{false, false, true}, {false, false, true}}));
}

TEST(ProgramCacheTest, KnowsWhichStagesTakeTheMicroBatchesInOrder) {
  ProgramCache cache(Routes::create(2));
  const auto ascend = [&](const Schedule& schedule, Half half) {
    return cache.get(schedule, half).forwards_ascend;
  };
  EXPECT_EQ(ascend(Schedule::one_f_one_b(2, 3), Half::kBoth), (std::vector<bool>{true, true}));
  const Schedule exchanged = Schedule::from_text(
      "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\n"
      "worker 1: F1.1 F1.0 B1.0 B1.1\n");
  EXPECT_EQ(ascend(exchanged, Half::kBoth), (std::vector<bool>{true, false}));
  EXPECT_EQ(ascend(exchanged, Half::kForward), (std::vector<bool>{true, false}));
}

TEST(ProgramCacheTest, SaysWhatIsWrongWithASchedule) {
  ProgramCache cache(Routes::create(2));
  const auto message = [&](const Schedule& schedule) -> std::string {
    try {
      cache.get(schedule, Half::kBoth);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_EQ(message(Schedule::gpipe(3, 3)),
            "the schedule is for 3 stages, but the pipeline has 2; give one for 2, or a "
            "ScheduleGenerator (Schedule::one_f_one_b, say)");
  EXPECT_EQ(message(Schedule::gpipe(2, 3).only({ActionKind::kForward})),
            "the schedule has no backwards; give the whole schedule and not "
            "a half of it");
  EXPECT_EQ(message(Schedule::gpipe(2, 3)), "no error")
      << "a refused schedule changes nothing in the cache";
}

}  // namespace
}  // namespace gpipe::internal
