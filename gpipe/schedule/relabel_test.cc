#include "gpipe/schedule/relabel.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/search/generators.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

TEST(Relabeled, FillDrainAscends) {
  EXPECT_EQ(relabeled(Schedule::gpipe(3, 4)), fill_drain(3, 4));
  EXPECT_EQ(relabeled(Schedule::gpipe(3, 4).only({ActionKind::kBackward})),
            fill_drain(3, 4).only({ActionKind::kBackward}));
}

TEST(Relabeled, AnAscendingScheduleIsItself) {
  EXPECT_EQ(relabeled(Schedule::one_f_one_b(3, 4)), Schedule::one_f_one_b(3, 4));
}

TEST(Relabeled, NothingWhereTimesWouldChange) {
  // Worker 1 begins with micro-batch 1, and so waits until worker 0 has run it. If that micro-batch
  // were renumbered to 0, worker 1 would start earlier. So the result is nullopt.
  EXPECT_EQ(relabeled(Schedule::from_text(
                "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\nworker 1: F1.1 F1.0 "
                "B1.0 B1.1")),
            std::nullopt);
  // The whole backward B0.1 is between the halves I0.0 and W0.0 of another, so the result is
  // nullopt.
  EXPECT_EQ(relabeled(Schedule::from_text(
                "stages 1\nmicro_batches 2\nworker 0: F0.0 F0.1 I0.0 B0.1 W0.0")),
            std::nullopt);
}

TEST(Relabeled, RandomTablesKeepTheirFacts) {
  std::mt19937_64 random = testing::test_random();
  int relabels = 0;
  for (int round = 0; round < 300; ++round) {
    const Schedule schedule = testing::random_schedule(1 + static_cast<int64_t>(random() % 3),
                                                       1 + static_cast<int64_t>(random() % 3),
                                                       testing::MicroBatchOrder::kAny, random);
    const std::optional<Schedule> other = relabeled(schedule);
    if (!other) continue;
    ScheduleFacts before = schedule.verify(Sends::kBuffered);
    const ScheduleFacts after = other->verify(Sends::kBuffered);
    EXPECT_TRUE(after.ascending);
    relabels += before.ascending ? 0 : 1;
    before.ascending = true;
    EXPECT_TRUE(before == after) << schedule.to_text();
  }
  EXPECT_GT(relabels, 0);
}

}  // namespace
}  // namespace gpipe
