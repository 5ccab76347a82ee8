#include "gpipe/timeline/simulate_again.h"

#include <gtest/gtest.h>

#include <optional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

double recomputed(const Action& action) {
  return action.kind == ActionKind::kBackward && action.stage == 0 && action.micro_batch < 3 ? 0.5
                                                                                             : 0;
}

double cost(const Action& action) {
  return (action.kind == ActionKind::kForward ? 1.0 : 2.0) + recomputed(action);
}

void expect_same(const StepTimeline& a, const StepTimeline& b) {
  ASSERT_EQ(a.workers.size(), b.workers.size());
  for (size_t worker = 0; worker < a.workers.size(); ++worker) {
    ASSERT_EQ(a.workers[worker].size(), b.workers[worker].size());
    for (size_t k = 0; k < a.workers[worker].size(); ++k) {
      EXPECT_EQ(a.workers[worker][k].action, b.workers[worker][k].action);
      EXPECT_EQ(a.workers[worker][k].begin, b.workers[worker][k].begin);
      EXPECT_EQ(a.workers[worker][k].end, b.workers[worker][k].end);
      EXPECT_EQ(a.workers[worker][k].recompute(), b.workers[worker][k].recompute());
    }
  }
}

TEST(SimulateAgain, LeavesOutWhatOneActionAndTransfersTookMore) {
  for (const Schedule& schedule : {Schedule::one_f_one_b(3, 4), Schedule::gpipe(3, 4),
                                   Schedule::one_f_one_b(1, 5), Schedule::gpipe(2, 1)}) {
    SimulateOptions options;
    options.action = cost;
    const StepTimeline undisturbed = to_timeline(simulate(schedule, options), 1e-3, recomputed);
    options.action = [](const Action& action) {
      return cost(action) + (action == Action{ActionKind::kForward, 0, 2} ? 7 : 0);
    };
    options.transfer = [](const Transfer& /*transfer*/) { return 0.25; };
    StepTimeline real = to_timeline(simulate(schedule, options), 1e-3, recomputed);
    real.simulated = false;
    const std::optional<StepTimeline> again = simulate_again(real, std::nullopt);
    ASSERT_TRUE(again.has_value());
    EXPECT_TRUE(again->simulated);
    expect_same(*again, undisturbed);
    expect_same(*simulate_again(real, Routes::create(schedule.stages(), {})), undisturbed);
  }
}

TEST(SimulateAgain, AForwardHasNoBackwards) {
  const Schedule forwards = Schedule::gpipe(2, 3).only({ActionKind::kForward});
  const StepTimeline step = to_timeline(simulate(forwards));
  const std::optional<StepTimeline> again = simulate_again(step, std::nullopt);
  ASSERT_TRUE(again.has_value());
  expect_same(*again, step);
}

TEST(SimulateAgain, AStepThatIsNotWholeHasNone) {
  EXPECT_FALSE(simulate_again(StepTimeline(), std::nullopt).has_value());
  StepTimeline step = to_timeline(simulate(Schedule::gpipe(2, 3)));
  EXPECT_FALSE(simulate_again(step, Routes::create(3, {})).has_value());
  step.workers[1].pop_back();
  EXPECT_FALSE(simulate_again(step, std::nullopt).has_value());
  step = to_timeline(simulate(Schedule::gpipe(2, 3)));
  step.workers[0][1].failed = true;
  EXPECT_FALSE(simulate_again(step, std::nullopt).has_value());
  StepTimeline second;  // a step without micro-batch 0
  second.workers = {{{{ActionKind::kForward, 0, 1}, 0, 5, 0, 0, false}}};
  EXPECT_FALSE(simulate_again(second, std::nullopt).has_value());
}

}  // namespace
}  // namespace gpipe
