#include "gpipe/schedule/search/loop_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpipe/schedule/search/anneal.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

TEST(LoopPattern, LargerGroupsAreFirst) {
  EXPECT_THAT(even_groups(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(even_groups(2, 1), ElementsAre(2));
}

TEST(LoopPattern, WithGroupsOfTheWorkersItIsInterleaved) {
  const Order interleaved_order = to_order(interleaved(3, 2, 6));
  for (int64_t worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(loop_order({3, 2, {3, 3}, false}, worker, 2 * (2 - worker) + 3),
              interleaved_order[static_cast<size_t>(worker)]);
  }
}

TEST(LoopPattern, GroupedOrdersKeepTheLimitsAndTheShortestIsFirst) {
  for (const bool split : {false, true}) {
    for (const double limit : {3.0, 5.0, 8.0, 30.0}) {
      const Workload workload = Workload::uniform(Placement::loop(4, 3), 10, {}, 0.1, limit);
      Timing timing(workload);
      const std::vector<Order> orders = grouped_orders(workload, split, 3, 10'000'000, {}, &timing);
      ASSERT_FALSE(orders.empty());
      EXPECT_GT(timing.actions(), 0);
      double before = 0.0;
      for (const Order& order : orders) {
        for (int32_t worker = 0; worker < 4; ++worker) {
          EXPECT_TRUE(keeps_limits(workload, worker, order[static_cast<size_t>(worker)]));
        }
        EXPECT_TRUE(to_schedule(order, 12, 10).verify(Sends::kBuffered).ascending);
        ASSERT_TRUE(timing.run(order));
        EXPECT_GE(timing.makespan(), before);
        before = timing.makespan();
      }
    }
  }
}

// grouped_orders() returns no orders if there is no room for the warm-up of one micro-batch, or if
// there is no work left to look at one order.
TEST(LoopPattern, ThereMayBeNone) {
  const Workload workload = Workload::uniform(Placement::loop(2, 2), 4, {}, 0.0, 1.0);
  Timing timing(workload);
  EXPECT_TRUE(grouped_orders(workload, true, 3, 10'000'000, {}, &timing).empty());
  EXPECT_TRUE(grouped_orders(
                  workload, true, 3, 10'000'000, [] { return true; }, &timing)
                  .empty());
}

}  // namespace
}  // namespace gpipe::internal
