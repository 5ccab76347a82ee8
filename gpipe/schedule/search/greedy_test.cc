#include "gpipe/schedule/search/greedy.h"

#include <gtest/gtest.h>

#include <limits>

#include "gpipe/schedule/search/generators.h"

namespace gpipe::internal {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// If each worker has room for one micro-batch in each of its stages, Greedy finds an order within
// the limits. With less room it finds none.
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

// makespan() and mean_end() are those of Timing, because a search takes the times from Greedy and
// does not run the order again.
TEST(Greedy, KnowsTheTimesOfItsOrder) {
  for (const Placement& placement : {Placement::one_each(3), Placement::loop(2, 3),
                                     Placement::v_shape(3), Placement::of({0, 1, 1, 0, 1})}) {
    Workload workload = Workload::uniform(placement, 7, {1.0, 1.7, 1.1, 0.7}, 0.3, 6.0);
    for (const bool skips : {false, true}) {
      if (skips) workload.add_skip(0, 2, 2.5, 1.5);
      Greedy greedy(workload);
      Order order;
      ASSERT_TRUE(greedy.run(GreedyRule::of(workload), &order));
      Timing timing(workload);
      ASSERT_TRUE(timing.run(order));
      EXPECT_EQ(greedy.makespan(), timing.makespan());
      EXPECT_EQ(greedy.mean_end(), timing.mean_end());
    }
  }
}

// If cover() says that two rules decide alike, they make equal orders. It says so for some pairs of
// rules, but not for all.
TEST(Greedy, MarginsTellRulesThatDecideAlike) {
  const Workload workload =
      Workload::uniform(Placement::v_shape(4), 9, {1.0, 1.7, 1.1, 0.7}, 0.1, 8.0);
  const Order sequence = to_order(zb_v(4, 9));
  Greedy greedy(workload);
  for (const Order* given : {static_cast<const Order*>(nullptr), &sequence}) {
    GreedyRule rule = GreedyRule::of(workload);
    rule.sequence = given;
    Order order;
    ASSERT_TRUE(greedy.run(rule, &order));
    const GreedyMargins margins = greedy.margins();
    EXPECT_TRUE(margins.cover(rule, rule));
    int covered = 0;
    int others = 0;
    const auto look_at = [&](const GreedyRule& other) {
      Order found;
      const bool runs = greedy.run(other, &found);
      others += !runs || found != order ? 1 : 0;
      if (!margins.cover(rule, other)) return;
      ++covered;
      EXPECT_TRUE(runs);
      EXPECT_EQ(found, order);
    };
    for (size_t worker = 0; worker < 4; ++worker) {
      for (int32_t k = 0; k <= 12; ++k) {
        GreedyRule other = rule;
        other.gap[worker] = 0.1 * k;
        look_at(other);
        other = rule;
        other.most_pending[worker] = k;
        look_at(other);
      }
    }
    for (size_t stage = 0; stage < 8; ++stage) {
      for (int32_t most = 1; most <= 9; ++most) {
        GreedyRule other = rule;
        other.most_live[stage] = most;
        look_at(other);
      }
    }
    EXPECT_GT(covered, 10);
    EXPECT_GT(others, 10);
    GreedyRule other = rule;
    other.depth_bonus = 0.2;
    EXPECT_FALSE(margins.cover(rule, other));
  }
}

TEST(Greedy, KeepsTheSequenceItIsGiven) {
  const Workload workload = Workload::uniform(Placement::one_each(3), 5, {}, 0.0, kNone);
  const Order sequence = to_order(zb_h1(3, 5));
  GreedyRule rule = GreedyRule::of(workload);
  rule.sequence = &sequence;
  rule.gap.assign(3, 1e6);  // no gap is large enough: weight gradients come last
  Order order;
  ASSERT_TRUE(Greedy(workload).run(rule, &order));
  const auto without_weights = [](const Order& full_order) {
    Schedule schedule = to_schedule(full_order, 3, 5);
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

// If all times are multiplied by the same factor, the order stays the same.
TEST(Greedy, TheUnitOfTimeChangesNothing) {
  for (const Placement& placement : {Placement::one_each(4), Placement::v_shape(4)}) {
    const auto order_in = [&](double unit) {
      const StageCost cost{1.0 * unit, 1.8 * unit, 1.1 * unit, 0.7 * unit};
      const Workload workload = Workload::uniform(placement, 9, cost, 0.1 * unit, 8.0);
      GreedyRule rule = GreedyRule::of(workload);
      rule.gradient_bonus = 0.3;
      rule.depth_bonus = 0.2;
      Order order;
      EXPECT_TRUE(Greedy(workload).run(rule, &order));
      return order;
    };
    const Order order = order_in(1.0);
    for (const double unit : {1e-12, 1e-6, 1e6, 1e12}) EXPECT_EQ(order_in(unit), order) << unit;
  }
}

// With 16 times as many stages on a worker, the counted work of a cell is at least 4 times as much,
// because a decision looks at all stages of the worker.
TEST(Greedy, MoreStagesOnAWorkerAreMoreWork) {
  const auto work_of_a_cell = [](const Placement& placement) {
    const Workload workload = Workload::uniform(placement, 8, {}, 0.0, kNone);
    Greedy greedy(workload);
    Order order;
    EXPECT_TRUE(greedy.run(GreedyRule::of(workload), &order));
    return greedy.actions() / (placement.stages() * 8);
  };
  EXPECT_GE(work_of_a_cell(Placement::loop(2, 32)), 4 * work_of_a_cell(Placement::loop(2, 2)));
}

TEST(Greedy, EndsWhenAsked) {
  const Workload workload = Workload::uniform(Placement::one_each(4), 4096, {}, 0.0, kNone);
  Order order;
  EXPECT_FALSE(Greedy(workload).run(GreedyRule::of(workload), &order, [] { return true; }));
}

}  // namespace
}  // namespace gpipe::internal
