#include "gpipe/timeline/time_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/testing/seed.h"
#include "gpipe/timeline/timeline.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kSecond = 1'000'000'000;

// Returns the parts of a time, given in seconds.
TimeParts parts(int64_t compute, int64_t recompute, int64_t fill, int64_t drain, int64_t imbalance,
                int64_t transfer, int64_t overhead) {
  return {compute * kSecond,   recompute * kSecond, fill * kSecond,    drain * kSecond,
          imbalance * kSecond, transfer * kSecond,  overhead * kSecond};
}

void expect_no_rest(const TimeSplit& split) {
  for (const TimeParts& of_worker : split.workers) {
    for (const int64_t part : of_worker) EXPECT_GE(part, 0);
    EXPECT_EQ(std::accumulate(of_worker.begin(), of_worker.end(), int64_t{0}), split.time);
  }
}

StepTimeline run(const Schedule& schedule, const ActionCost& cost, double transfer = 0) {
  SimulateOptions options;
  options.action = cost;
  options.transfer = [transfer](const Transfer&) { return transfer; };
  return to_timeline(simulate(schedule, options));
}

TEST(SplitTime, OfEqualPartitionsIsFillAndDrain) {
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t m = 1; m <= 9; ++m) {
      for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
        const TimeSplit split = split_time(run(schedule, uniform_cost({1.0, 2.0})));
        expect_no_rest(split);
        EXPECT_EQ(split.time, (m + p - 1) * 3 * kSecond);
        for (int64_t worker = 0; worker < p; ++worker) {
          EXPECT_EQ(split.share(TimePart::kImbalance, worker), 0) << p << " " << m << " " << worker;
          EXPECT_EQ(split.share(TimePart::kTransfer, worker), 0);
          EXPECT_EQ(split.share(TimePart::kOverhead, worker), 0);
          EXPECT_NEAR(split.share(TimePart::kFill, worker) + split.share(TimePart::kDrain, worker),
                      static_cast<double>(p - 1) / static_cast<double>(m + p - 1), 1e-12);
        }
      }
    }
  }
}

TEST(SplitTime, FillDrainByHand) {
  // 0: F0 F1 .. .. .. .. B1 B1 B0 B0
  // 1: .. F0 F1 B1 B1 B0 B0 .. .. ..   (its B1 ends at 5)
  const TimeSplit split = split_time(run(Schedule::gpipe(2, 2), uniform_cost({1.0, 2.0})));
  EXPECT_EQ(split.time, 9 * kSecond);
  EXPECT_EQ(split.workers[0], parts(6, 0, 3, 0, 0, 0, 0));
  EXPECT_EQ(split.workers[1], parts(6, 0, 1, 2, 0, 0, 0));
}

TEST(SplitTime, ASlowPartitionIsImbalance) {
  const ActionCost cost = stage_costs({{1, 1}, {3, 3}});
  for (const Schedule& schedule : {Schedule::gpipe(2, 4), Schedule::one_f_one_b(2, 4)}) {
    const TimeSplit split = split_time(run(schedule, cost));
    expect_no_rest(split);
    EXPECT_EQ(split.time, 26 * kSecond);
    EXPECT_EQ(split.workers[1], parts(24, 0, 1, 1, 0, 0, 0));
  }
  // 0: F0 F1 F2 F3, and B3 from 16 on, B2 from 19 on, B1, B0     1: . F0 (3) F1 .. F3 B3 .. B0 .
  // In worker 0 the first B waits for F1.3 and B1.3, which take 6 (fill). F1.3 waits for its turn
  // from 4 to 10 (imbalance).
  EXPECT_EQ(split_time(run(Schedule::gpipe(2, 4), cost)).workers[0],
            parts(8, 0, 6, 0, 6 + 6, 0, 0));
  // If stage 0 is the slow one, the same happens at the end of the step:
  // 0: F0 (3) .. F3 B3 .. B0    1: . F0 . F1 . F2 . F3 B3 B2 B1 B0 (to 17)
  const TimeSplit end = split_time(run(Schedule::gpipe(2, 4), stage_costs({{3, 3}, {1, 1}})));
  EXPECT_EQ(end.time, 26 * kSecond);
  EXPECT_EQ(end.workers[0], parts(24, 0, 2, 0, 0, 0, 0));
  EXPECT_EQ(end.workers[1], parts(8, 0, 3, 3, 6 + 6, 0, 0));
}

TEST(SplitTime, TransfersAndRecomputesAreToldApart) {
  SimulateOptions options;
  options.action = uniform_cost({1.0, 2.0});
  options.transfer = [](const Transfer&) { return 2.0; };
  const Simulation simulation = simulate(Schedule::gpipe(2, 1), options);
  const TimeSplit split = split_time(to_timeline(simulation, 1.0, [](const Action& action) {
    return action.kind == ActionKind::kBackward ? 1.0 : 0.0;
  }));
  // 0: F0 .. .. .. .. .. .. B0 B0      1: .. (2) F0 B0 B0 (2) .. ..
  EXPECT_EQ(split.time, 10 * kSecond);
  EXPECT_EQ(split.workers[0], parts(2, 1, 5, 0, 0, 2, 0));
  EXPECT_EQ(split.workers[1], parts(2, 1, 1, 4, 0, 2, 0));
  EXPECT_DOUBLE_EQ(split.utilization(), 0.3);
}

TEST(SplitTime, OfARealRunCallsWhatWaitedForNothingOverhead) {
  StepTimeline step;
  const auto add = [&](size_t worker, const char* action, int64_t begin, int64_t end) {
    step.workers.resize(2);
    step.workers[worker].push_back({Action::from_text(action), begin, end, begin, begin, false});
  };
  add(0, "F0.0", 100, 110);
  add(0, "F0.1", 113, 120);  // 3 ns of overhead
  add(1, "F1.0", 112, 130);  // 10 ns of fill, 2 of transfer
  add(1, "F1.1", 131, 140);  // F0.1 had ended by 130, so 1 ns of overhead
  add(1, "B1.1", 140, 150);
  add(1, "B1.0", 150, 160);
  // 20 ns are fill. 10 are imbalance, because F0.1 had ended before F1.0 did. 4 are transfer.
  add(0, "B0.1", 154, 155);
  add(0, "B0.0", 165, 170);  // 5 ns of imbalance, 5 of transfer
  const TimeSplit split = split_time(step);
  expect_no_rest(split);
  EXPECT_EQ(split.time, 70);
  EXPECT_EQ(split.workers[0], (TimeParts{23, 0, 20, 0, 15, 9, 3}));
  EXPECT_EQ(split.workers[1], (TimeParts{47, 0, 10, 10, 0, 2, 1}));
}

TEST(SplitTime, WaitsForSkipsIfItKnowsThem) {
  // Worker 1 has stages 1 and 2. Stage 2 needs a skip from stage 0, which is on worker 0.
  StepTimeline step;
  step.workers = {{{Action::from_text("F0.0"), 0, 50}},
                  {{Action::from_text("F1.0"), 0, 10}, {Action::from_text("F2.0"), 52, 60}}};
  const TimeSplit chain = split_time(step);
  EXPECT_EQ(chain.workers[1], (TimeParts{18, 0, 0, 0, 0, 0, 42}));
  const TimeSplit skips = split_time(step, Routes::create(3, {{0, 2, "skip"}}));
  EXPECT_EQ(skips.workers[1], (TimeParts{18, 0, 0, 0, 40, 2, 0}));
  EXPECT_THAT([&] { split_time(step, Routes::create(2)); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("routes are for 2 stages")));
}

TEST(SplitTime, AddsUpInAnySimulation) {
  std::mt19937_64 random = testing::test_random();
  std::uniform_real_distribution<double> seconds(0.0, 1.0);
  for (int k = 0; k < 200; ++k) {
    const int64_t stages = 1 + static_cast<int64_t>(random() % 5);
    const int64_t micro_batches = 1 + static_cast<int64_t>(random() % 6);
    const Schedule schedule =
        testing::random_schedule(stages, micro_batches, testing::MicroBatchOrder::kAny, random);
    std::vector<Route> skips;
    if (stages > 2) skips.push_back({0, static_cast<int32_t>(stages) - 1, "skip"});
    const Routes routes = Routes::create(stages, skips);
    SimulateOptions options;
    options.action = [&](const Action&) { return seconds(random); };
    if (random() % 2 == 0) options.transfer = [&](const Transfer&) { return seconds(random); };
    const Simulation simulation = simulate(schedule, routes, options);
    const StepTimeline step = to_timeline(simulation, 1e-3);
    const TimeSplit split = split_time(step, routes);
    expect_no_rest(split);
    double sum = 0;
    for (int part = 0; part < kTimeParts; ++part) sum += split.share(static_cast<TimePart>(part));
    EXPECT_NEAR(sum, 1.0, 1e-12);
    EXPECT_NEAR(split.utilization(), 1 - simulation.bubble_ratio(), 1e-6);
    EXPECT_EQ(split.share(TimePart::kOverhead), 0);
    if (!options.transfer) {
      EXPECT_NEAR(split.share(TimePart::kTransfer), 0, 1e-7);  // no more than rounding
    }
  }
}

TEST(SplitTime, AddsUpInRealRuns) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 20; ++k) {
    const Schedule schedule =
        testing::random_schedule(3, 4, testing::MicroBatchOrder::kAny, random);
    const Routes routes = Routes::create(3, {{0, 2, "skip"}});
    const Program program = compile(schedule, routes);
    Timeline timeline;
    const Observer observer = timeline.observer();
    internal::WorkerPool pool(schedule.workers());
    internal::Mailboxes<int> mailboxes(program.slots);
    internal::ExecuteOptions options;
    options.observer = &observer;
    const auto failure = internal::execute<int>(
        pool, program, mailboxes, [](const Action&, auto&, auto&) {}, options);
    ASSERT_FALSE(failure.has_value());
    const std::vector<StepTimeline> steps = timeline.steps();
    ASSERT_EQ(steps.size(), 1u);
    expect_no_rest(split_time(steps, routes));
  }
}

// If an observer throws, a step ends early, but no action of it has failed. Such steps are left
// out, too.
TEST(SplitTime, LeavesOutStepsThatWereCutShort) {
  const StepTimeline complete = run(Schedule::one_f_one_b(2, 4), uniform_cost({1.0, 2.0}));
  StepTimeline shorter = complete;
  shorter.workers[0].pop_back();
  EXPECT_EQ(split_time({shorter, complete}).steps, 1);
  EXPECT_EQ(split_time({shorter, complete}).time, 15 * kSecond);
  StepTimeline half = complete;
  half.workers.pop_back();
  EXPECT_EQ(split_time({half, complete}, Routes::create(2)).steps, 1);
}

TEST(SplitTime, AddsUpStepsAndLeavesOutFailedOnes) {
  const StepTimeline complete = run(Schedule::gpipe(2, 2), uniform_cost({1.0, 2.0}));
  StepTimeline failed = complete;
  failed.workers[0][1].failed = true;
  const TimeSplit split = split_time({complete, failed, complete});
  EXPECT_EQ(split.steps, 2);
  EXPECT_EQ(split.time, 18 * kSecond);
  EXPECT_EQ(split.workers[0], parts(12, 0, 6, 0, 0, 0, 0));
  EXPECT_EQ(split_time(failed).steps, 0);
  EXPECT_EQ(split_time(failed).utilization(), 0);
  EXPECT_THAT(
      [&] {
        split_time({complete, run(Schedule::gpipe(3, 2), uniform_cost({}))});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("on 2 workers, another on 3")));
  EXPECT_THROW((void)split.share(TimePart::kFill, 2), std::out_of_range);
}

}  // namespace
}  // namespace gpipe
