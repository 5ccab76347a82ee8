#include "gpipe/schedule/greedy.h"

#include <gtest/gtest.h>

#include <limits>

#include "gpipe/schedule/generators.h"

namespace gpipe::internal {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// With room for one micro-batch in each stage of a worker there always is an order.
TEST(Greedy, KeepsEveryLimitThatCanBeKept) {
  for (const Placement& placement : {Placement::one_each(3), Placement::loop(2, 3),
                                     Placement::v_shape(3), Placement::of({0, 1, 1, 0, 1})}) {
    for (int64_t room = 3; room <= 6; ++room) {
      const Workload workload = Workload::uniform(placement, 5, {}, 0.5, static_cast<double>(room));
      Order order;
      ASSERT_TRUE(Greedy(workload).run(GreedyRule::of(workload), &order));
      const ScheduleFacts facts =
          to_schedule(order, placement.stages(), 5).verify(Sends::kBuffered);
      EXPECT_TRUE(facts.ascending);
      for (const int64_t held : facts.worker_peak_live) EXPECT_LE(held, room);
    }
  }
  const Workload workload = Workload::uniform(Placement::v_shape(2), 2, {}, 0.0, 1.0);
  Order order;
  EXPECT_FALSE(Greedy(workload).run(GreedyRule::of(workload), &order)) << "two stages, room for 1";
}

TEST(Greedy, KeepsTheSequenceItIsGiven) {
  const Workload workload = Workload::uniform(Placement::one_each(3), 5, {}, 0.0, kNone);
  const Order sequence = to_order(zb_h1(3, 5));
  GreedyRule rule = GreedyRule::of(workload);
  rule.sequence = &sequence;
  rule.gap.assign(3, 1e6);  // no gap is large enough: weight gradients come last
  Order order;
  ASSERT_TRUE(Greedy(workload).run(rule, &order));
  const auto without_weights = [](const Order& of) {
    Schedule schedule = to_schedule(of, 3, 5);
    return schedule.only({ActionKind::kForward, ActionKind::kInputGradient});
  };
  EXPECT_EQ(without_weights(order), without_weights(sequence));
  EXPECT_EQ(kind_of(order[0].back()), ActionKind::kWeightGradient);
  EXPECT_EQ(kind_of(order[0][order[0].size() - 5]), ActionKind::kWeightGradient);
}

TEST(Greedy, RunsWholeBackwardsWhereTheRuleSaysSo) {
  const Workload workload = Workload::uniform(Placement::one_each(2), 3, {}, 0.0, 2.0);
  GreedyRule rule = GreedyRule::of(workload);
  rule.whole = {true, false};
  Order order;
  ASSERT_TRUE(Greedy(workload).run(rule, &order));
  const Schedule schedule = to_schedule(order, 2, 3);
  for (const Action& action : schedule.actions(0)) {
    EXPECT_NE(action.kind, ActionKind::kInputGradient);
  }
  for (const Action& action : schedule.actions(1)) EXPECT_NE(action.kind, ActionKind::kBackward);
}

}  // namespace
}  // namespace gpipe::internal
