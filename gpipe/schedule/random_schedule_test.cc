#include "gpipe/schedule/random_schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "gpipe/testing/seed.h"

namespace gpipe::testing {
namespace {

TEST(RandomSchedule, VerifiesAndDiffers) {
  std::mt19937_64 random = test_random();
  std::set<std::string> texts;
  std::set<int64_t> workers;
  bool split = false, whole = false;
  for (int k = 0; k < 200; ++k) {
    const Schedule schedule = random_schedule(1 + k % 4, 1 + k % 5, MicroBatchOrder::kAny, random);
    EXPECT_EQ(schedule.stages(), 1 + k % 4);
    EXPECT_EQ(schedule.micro_batches(), 1 + k % 5);
    EXPECT_NO_THROW(schedule.verify(Sends::kBuffered)) << schedule.to_text();
    texts.insert(schedule.to_text());
    workers.insert(schedule.workers());
    split = split || schedule.to_text().find('W') != std::string::npos;
    whole = whole || schedule.to_text().find('B') != std::string::npos;
  }
  EXPECT_GT(texts.size(), 150u);
  EXPECT_EQ(workers.size(), 4u);
  EXPECT_TRUE(split && whole);
}

TEST(RandomSchedule, AscendsIfAskedTo) {
  std::mt19937_64 random = test_random();
  for (int k = 0; k < 50; ++k) {
    const Schedule schedule = random_schedule(3, 4, MicroBatchOrder::kAscending, random);
    std::vector<int> forwards(3), sums(3);
    for (const std::vector<Action>& actions : schedule.table()) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::kInputGradient) continue;
        std::vector<int>& next = action.kind == ActionKind::kForward ? forwards : sums;
        EXPECT_EQ(action.micro_batch, next[action.stage]++) << schedule.to_text();
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::testing
