#include "gpipe/schedule/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "gpipe/schedule/hand_written.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Cell = std::pair<int, int>;  // micro-batch, stage
using Cycles = std::vector<std::vector<Cell>>;

// For each time 0, 1, ..., the cells whose forward starts then, by ascending stage.
Cycles cycles(int64_t micro_batches, int64_t stages) {
  const Simulation run =
      simulate(Schedule::gpipe(stages, micro_batches).only({ActionKind::kForward}));
  Cycles cycles(static_cast<size_t>(run.makespan));
  for (const auto& timeline : run.workers) {
    for (const TimedAction& timed : timeline) {
      cycles[static_cast<size_t>(timed.start)].push_back(
          {timed.action.micro_batch, timed.action.stage});
    }
  }
  return cycles;
}

// The expected cells are those of torchgpipe's clock cycles. Here they result because each cell
// starts when its input is there.
TEST(Simulate, ForwardHalfRunsInDiagonals) {
  EXPECT_EQ(cycles(1, 1), (Cycles{{{0, 0}}}));
  EXPECT_EQ(cycles(1, 3), (Cycles{{{0, 0}}, {{0, 1}}, {{0, 2}}}));
  EXPECT_EQ(cycles(3, 1), (Cycles{{{0, 0}}, {{1, 0}}, {{2, 0}}}));
  EXPECT_EQ(
      cycles(3, 3),
      (Cycles{{{0, 0}}, {{1, 0}, {0, 1}}, {{2, 0}, {1, 1}, {0, 2}}, {{2, 1}, {1, 2}}, {{2, 2}}}));
  EXPECT_EQ(cycles(4, 2),
            (Cycles{{{0, 0}}, {{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{3, 0}, {2, 1}}, {{3, 1}}}));
}

TEST(Simulate, UnitTimesAgreeWithTheFacts) {
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 8; ++m) {
      for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
        const ScheduleFacts facts = schedule.verify();
        const Simulation run = simulate(schedule);
        EXPECT_EQ(run.makespan, static_cast<double>(facts.makespan));
        EXPECT_NEAR(run.bubble_ratio(), facts.bubble_ratio, 1e-12);
      }
    }
  }
}

// One worker, cells of 4 bytes, 2 bytes per unit to the host and 4 from it.
TEST(Simulate, OffloadsWaitForTheirCopyAndBackwardsForTheirReload) {
  SimulateOptions costs;
  costs.offload.bytes = [](const Action&) { return 4.0; };
  costs.offload.to_host = 2.0;
  costs.offload.to_device = 4.0;
  const Simulation run =
      simulate(Schedule::from_text("stages 1\nmicro_batches 3\n"
                                   "worker 0: F0.0 F0.1 O0.0 F0.2 O0.1 B0.2 L0.1 B0.1 L0.0 B0.0\n"),
               costs);
  std::ostringstream text;
  text << run;
  EXPECT_EQ(text.str(),
            "makespan 10\n"
            "worker 0: F0.0 0..1 F0.1 1..2 O0.0 2..3 F0.2 3..4 O0.1 4..5 B0.2 5..6 L0.1 6..6 "
            "B0.1 7..8 L0.0 8..8 B0.0 9..10\n");
  EXPECT_EQ(::testing::PrintToString(run.copies[0]),
            "{ O0.0 1..3, O0.1 3..5, L0.1 6..7, L0.0 8..9 }");
  EXPECT_THAT(run.busy, ElementsAre(6.0));
  EXPECT_THAT(run.reload_waits, ElementsAre(2.0));
  EXPECT_THAT(run.peak, ElementsAre(8.0));
}

TEST(Simulate, ALinkWithoutARateIsRefused) {
  const Schedule schedule = Schedule::one_f_one_b(2, 2);
  SimulateOptions costs;
  const auto run = [&] { simulate(schedule, costs); };
  costs.offload.to_host = 1.0;
  costs.offload.to_device = 0.0;
  EXPECT_THAT(run, ThrowsMessage<std::invalid_argument>(
                       HasSubstr("to_host and to_device must be above 0, got 1 and 0")));
  costs.offload.to_host = 0.0;
  costs.offload.to_device = 1.0;
  EXPECT_THAT(run, ThrowsMessage<std::invalid_argument>(
                       HasSubstr("to_host and to_device must be above 0, got 0 and 1")));
}

TEST(Simulate, CopiesOverOneLinkTakeTurns) {
  SimulateOptions costs;
  costs.offload.bytes = [](const Action&) { return 1.0; };
  costs.offload.to_host = costs.offload.to_device = 0.5;
  costs.offload.link = {0, 0};
  const Simulation run = simulate(Schedule::from_text("stages 2\nmicro_batches 1\n"
                                                      "worker 0: F0.0 O0.0 L0.0 B0.0\n"
                                                      "worker 1: F1.0 O1.0 L1.0 B1.0\n"),
                                  costs);
  EXPECT_EQ(::testing::PrintToString(run.copies[0]), "{ O0.0 1..3, L0.0 3..5 }");
  EXPECT_EQ(::testing::PrintToString(run.copies[1]), "{ O1.0 3..5, L1.0 5..7 }");
  EXPECT_EQ(run.makespan, 9.0);
}

TEST(Simulate, WholeTimeline) {
  const Simulation run = simulate(Schedule::one_f_one_b(2, 2), {uniform_cost({1.0, 2.0}), {}});
  const auto times = [&](size_t worker) {
    std::string text;
    for (const TimedAction& timed : run.workers[worker]) {
      text += timed.action.to_text() + "=" + std::to_string(static_cast<int>(timed.start)) + ".." +
              std::to_string(static_cast<int>(timed.end)) + " ";
    }
    return text;
  };
  EXPECT_EQ(times(0), "F0.0=0..1 F0.1=1..2 B0.0=4..6 B0.1=7..9 ");
  EXPECT_EQ(times(1), "F1.0=1..2 B1.0=2..4 F1.1=4..5 B1.1=5..7 ");
  EXPECT_EQ(run.makespan, 9.0);
  EXPECT_THAT(run.busy, ElementsAre(6.0, 6.0));
  EXPECT_DOUBLE_EQ(run.bubble(0), 1.0 / 3.0);
  EXPECT_THROW(run.bubble(2), std::out_of_range);
}

// GPipe's schedule and 1F1B have the ideal efficiency of m / (m + p - 1) if backwards take twice as
// long as forwards.
TEST(Simulate, IdealEfficiency) {
  for (const Schedule& schedule : {Schedule::gpipe(8, 32), Schedule::one_f_one_b(8, 32)}) {
    const Simulation run = simulate(schedule, {uniform_cost({5.0, 10.0}), {}});
    EXPECT_DOUBLE_EQ(run.makespan, 15.0 * (32 + 8 - 1));
    EXPECT_NEAR(1.0 - run.bubble_ratio(), 32.0 / 39.0, 1e-12);
  }
}

TEST(Simulate, TheSlowestStageSetsThePace) {
  const Simulation run = simulate(Schedule::gpipe(3, 4).only({ActionKind::kForward}),
                                  {stage_costs({{1.0}, {5.0}, {2.0}}), {}});
  EXPECT_DOUBLE_EQ(run.makespan, 1.0 + 4 * 5.0 + 2.0);
  EXPECT_THAT(run.busy, ElementsAre(4.0, 20.0, 8.0));
  EXPECT_DOUBLE_EQ(run.bubble(1), 3.0 / 23.0);
}

TEST(Simulate, CostsPerCell) {
  const Simulation run =
      simulate(Schedule::gpipe(2, 2).only({ActionKind::kForward}),
               {[](const Action& a) { return a.micro_batch == 1 ? 10.0 : 1.0; }, {}});
  EXPECT_DOUBLE_EQ(run.makespan, 1.0 + 10.0 + 10.0);
}

TEST(Simulate, TransfersDelayTheReceiverOnly) {
  std::vector<std::string> asked;
  SimulateOptions options;
  options.transfer = [&](const Transfer& transfer) {
    asked.push_back(to_text(transfer.route) + ":" + transfer.producer.to_text() + "@" +
                    std::to_string(transfer.from_worker) + ">" + transfer.consumer.to_text() + "@" +
                    std::to_string(transfer.to_worker));
    return transfer.route == RouteId{2} ? 7.0 : 0.5;
  };
  const Simulation run =
      simulate(Schedule::gpipe(3, 1), Routes::create(3, {{0, 2, "skip"}}), options);
  EXPECT_THAT(asked, ElementsAre("0:F0.0@0>F1.0@1", "1:F1.0@1>F2.0@2", "2:F0.0@0>F2.0@2",
                                 "1:B2.0@2>B1.0@1", "0:B1.0@1>B0.0@0", "2:B2.0@2>B0.0@0"));
  EXPECT_DOUBLE_EQ(run.workers[1][0].start, 1.5);
  EXPECT_DOUBLE_EQ(run.workers[2][0].start, 8.0);
  EXPECT_DOUBLE_EQ(run.workers[1][1].start, 10.5);
  EXPECT_DOUBLE_EQ(run.makespan, 18.0);
}

TEST(Simulate, NothingIsTransferredInsideAWorker) {
  SimulateOptions options;
  options.transfer = [](const Transfer& transfer) {
    EXPECT_NE(transfer.from_worker, transfer.to_worker);
    return 0.0;
  };
  EXPECT_EQ(
      simulate(testing::interleaved(), Routes::create(4, {{0, 2, "near"}, {0, 3, "far"}}), options)
          .makespan,
      simulate(testing::interleaved()).makespan);
}

TEST(Simulate, TakesHandWrittenSchedules) {
  EXPECT_EQ(simulate(testing::interleaved()).makespan, 10.0);
  // The weight gradients run when the workers would be idle, so split_backward() is faster than
  // 1F1B.
  const ActionCost cost = uniform_cost({1.0, 2.0, 1.0, 1.0});
  EXPECT_EQ(simulate(testing::split_backward(), {cost, {}}).makespan, 7.0);
  EXPECT_EQ(simulate(Schedule::one_f_one_b(2, 2), {cost, {}}).makespan, 9.0);
}

TEST(Simulate, NoTimeNoBubble) {
  const Simulation run = simulate(Schedule::gpipe(2, 2), {uniform_cost({0.0, 0.0}), {}});
  EXPECT_EQ(run.makespan, 0.0);
  EXPECT_EQ(run.bubble_ratio(), 0.0);
}

TEST(Simulate, IsPrinted) {
  const StageCost cost{1.0, 2.5};
  EXPECT_EQ(::testing::PrintToString(cost), "F 1 B 2.5 I 1 W 1");
  const Simulation run = simulate(Schedule::gpipe(2, 1), {uniform_cost(cost), {}});
  EXPECT_EQ(::testing::PrintToString(run.workers[1][1]), "B1.0 2..4.5");
  EXPECT_EQ(::testing::PrintToString(run),
            "makespan 7\n"
            "worker 0: F0.0 0..1 B0.0 4.5..7\n"
            "worker 1: F1.0 1..2 B1.0 2..4.5\n");
}

TEST(Simulate, WrongInputThrows) {
  const Schedule schedule = Schedule::gpipe(2, 2);
  EXPECT_THROW(simulate(Schedule::create(1, 1, {})), std::invalid_argument);
  EXPECT_THROW(simulate(schedule, Routes::create(3)), std::invalid_argument);
  for (double wrong :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(simulate(schedule, {uniform_cost({wrong}), {}}), std::invalid_argument);
    EXPECT_THROW(simulate(schedule, {uniform_cost({}), [=](const Transfer&) { return wrong; }}),
                 std::invalid_argument);
  }
  EXPECT_THROW(simulate(schedule, {stage_costs({{1.0}}), {}}), std::out_of_range);
}

}  // namespace
}  // namespace gpipe
