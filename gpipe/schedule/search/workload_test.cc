#include "gpipe/schedule/search/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gpipe/schedule/search/anneal.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::internal {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

TEST(Orders, AreAscendingSchedules) {
  for (const Schedule& schedule :
       {Schedule::one_f_one_b(3, 5), interleaved(2, 2, 5), zb_h1(4, 6), dualpipe_v(2, 5)}) {
    EXPECT_EQ(to_schedule(to_order(schedule), schedule.stages(), schedule.micro_batches()),
              schedule);
  }
}

TEST(Orders, TruncatedOnesRunWithFewerMicroBatches) {
  EXPECT_EQ(to_schedule(truncated(to_order(Schedule::one_f_one_b(3, 5)), 3, 2), 3, 2).to_text(),
            "stages 3\n"
            "micro_batches 2\n"
            "worker 0: F0.0 F0.1 B0.0 B0.1\n"
            "worker 1: F1.0 F1.1 B1.0 B1.1\n"
            "worker 2: F2.0 B2.0 F2.1 B2.1\n");
}

TEST(Orders, PeakMemoryCountsWhatWaits) {
  Workload workload = Workload::uniform(Placement::one_each(1), 2, {}, 0.0, kNone);
  workload.held = {3.0};
  workload.waiting = {1.0};
  const auto peak = [&](const char* actions) {
    return peak_memory(workload,
                       to_order(Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: " +
                                                    std::string(actions)))
                           .front());
  };
  EXPECT_EQ(peak("F0.0 I0.0 F0.1 W0.0 I0.1 W0.1"), 4.0);
  EXPECT_EQ(peak("F0.0 I0.0 W0.0 F0.1 I0.1 W0.1"), 3.0);
  EXPECT_EQ(peak("F0.0 F0.1 B0.0 B0.1"), 6.0);
}

// Timing and simulate() give the same times. The critical path leads from time 0 to the makespan.
TEST(Timings, AgreeWithSimulate) {
  const StageCost cost{1.0, 1.7, 1.1, 0.7};
  for (const Schedule& schedule :
       {Schedule::one_f_one_b(4, 7), interleaved(3, 2, 7), zero_bubble_interleaved(3, 2, 6),
        dualpipe_v(3, 7), zb_v(3, 5)}) {
    const Workload workload =
        Workload::uniform(schedule.placement(), schedule.micro_batches(), cost, 0.3, kNone);
    Timing timing(workload);
    const Order order = to_order(schedule);
    ASSERT_TRUE(timing.run(order));
    const Simulation run =
        simulate(schedule, {uniform_cost(cost), [](const Transfer&) { return 0.3; }});
    EXPECT_DOUBLE_EQ(timing.makespan(), run.makespan);

    std::vector<Timing::Place> path;
    timing.critical_path(order, &path);
    double time = run.makespan;
    for (const Timing::Place& place : path) {
      const TimedAction& timed =
          run.workers[static_cast<size_t>(place.worker)][static_cast<size_t>(place.index)];
      EXPECT_LE(time - timed.end, 0.3 + 1e-9)
          << "no gap on the critical path is longer than one transfer (0.3)";
      EXPECT_GE(time - timed.end, -1e-9);
      time = timed.start;
    }
    EXPECT_EQ(time, 0.0);
  }
}

TEST(Timings, ASlowLinkSlowsWhatTakesIt) {
  const Workload workload = Workload::uniform(Placement::one_each(3), 1, {}, 0.0, kNone);
  Timing timing(workload);
  ASSERT_EQ(timing.links().size(), 2u);
  const Order order = to_order(Schedule::one_f_one_b(3, 1));
  ASSERT_TRUE(timing.run(order));
  EXPECT_EQ(timing.makespan(), 6.0);
  ASSERT_TRUE(timing.run(order, 0, 5.0));
  EXPECT_EQ(timing.makespan(), 16.0) << "there and back";
}

TEST(Timings, AnOrderThatWaitsForEverDoesNotRun) {
  const Workload workload = Workload::uniform(Placement::one_each(2), 2, {}, 0.0, kNone);
  Timing timing(workload);
  EXPECT_FALSE(timing.run(to_order(Schedule::from_text(
      "stages 2\nmicro_batches 2\nworker 0: F0.0 B0.0 F0.1 B0.1\nworker 1: F1.0 F1.1 B1.0 B1.1"))));
}

// rerun() must give bitwise the same as a whole run, also if the workers deadlock. As annealing
// does, the test changes one worker's list again and again, and keeps some changes.
TEST(Timings, ARunFromTheChangeOnIsAWholeRun) {
  std::mt19937 random(7);
  const auto below = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  int ended = 0;
  int waited = 0;
  for (const Schedule& schedule :
       {Schedule::one_f_one_b(4, 7), interleaved(3, 2, 7), zero_bubble_interleaved(3, 2, 6),
        dualpipe_v(3, 7), zb_v(3, 5), zb_h1(1, 3)}) {
    for (const bool skips : {false, true}) {
      Workload workload = Workload::uniform(schedule.placement(), schedule.micro_batches(),
                                            {1.0, 1.7, 1.1, 0.7}, 0.3, kNone);
      workload.cost[0][static_cast<size_t>(ActionKind::kWeightGradient)] = 0.0;
      if (skips && workload.stages > 2) workload.add_skip(0, workload.stages - 1, 5.0, 4.0);
      Order order = to_order(schedule);
      Timing timing(workload);
      ASSERT_TRUE(timing.run(order));
      timing.keep();
      for (int change = 0; change < 1000; ++change) {
        const size_t worker = below(order.size());
        const WorkerOrder before = order[worker];
        WorkerOrder& tokens = order[worker];
        const size_t from = below(tokens.size());
        const size_t to = below(tokens.size());
        std::swap(tokens[from], tokens[to]);
        if (change % 7 == 0) {
          // The change also splits a whole backward.
          const size_t at = below(tokens.size());
          if (kind_of(tokens[at]) == ActionKind::kBackward) {
            const int32_t stage = stage_of(tokens[at]);
            tokens[at] = token(ActionKind::kInputGradient, stage);
            tokens.push_back(token(ActionKind::kWeightGradient, stage));
          }
        }
        if (!keeps_limits(workload, static_cast<int32_t>(worker), tokens)) {
          tokens = before;
          continue;
        }
        const auto first =
            std::mismatch(tokens.begin(), tokens.end(), before.begin(), before.end()).first;
        Timing whole(workload);
        const int64_t actions = timing.actions();
        const bool ends = whole.run(order);
        ASSERT_EQ(timing.rerun(order, worker, static_cast<size_t>(first - tokens.begin())), ends);
        EXPECT_EQ(timing.actions() - actions, whole.actions());
        ++(ends ? ended : waited);
        if (!ends) {
          tokens = before;
          continue;
        }
        ASSERT_EQ(timing.makespan(), whole.makespan());
        ASSERT_EQ(timing.mean_end(), whole.mean_end());
        std::vector<Timing::Place> path;
        std::vector<Timing::Place> whole_path;
        timing.critical_path(order, &path);
        whole.critical_path(order, &whole_path);
        ASSERT_EQ(path.size(), whole_path.size());
        for (size_t k = 0; k < path.size(); ++k) {
          ASSERT_EQ(path[k].worker, whole_path[k].worker);
          ASSERT_EQ(path[k].index, whole_path[k].index);
        }
        // rerun() must be right also if `timing` has run another order since keep().
        if (change % 5 == 0 && !timing.links().empty()) timing.run(order, 0, 2.0);
        if (change % 3 == 0) {
          tokens = before;
          continue;
        }
        if (change % 5 == 0) timing.run(order);
        timing.keep();
      }
    }
  }
  EXPECT_GT(ended, 1000);
  EXPECT_GT(waited, 500);
}

// No order is faster than the bound, and some orders reach it.
TEST(LowerBound, IsBelowAllAndReached) {
  for (const double transfer : {0.0, 0.1}) {
    const StageCost cost{1.0, 1.8, 1.1, 0.7};
    for (int64_t p = 1; p <= 4; ++p) {
      const int64_t m = 2 * p;
      for (const Schedule& schedule :
           {Schedule::one_f_one_b(p, m), zb_h1(p, m), zb_h2(p, m, {cost, transfer}),
            zb_v(p, m, {cost, transfer}), v_min(p, m, {cost, transfer}), interleaved(p, 3, m)}) {
        const ScheduleFacts facts = schedule.verify(Sends::kBuffered);
        Workload workload = Workload::uniform(schedule.placement(), m, cost, transfer, kNone);
        for (size_t worker = 0; worker < facts.worker_peak_live.size(); ++worker) {
          workload.limit[worker] = static_cast<double>(facts.worker_peak_live[worker]);
        }
        Timing timing(workload);
        ASSERT_TRUE(timing.run(to_order(schedule)));
        EXPECT_GE(timing.makespan(), lower_bound(workload) - 1e-9);
        if (schedule == zb_h2(p, m, {cost, transfer})) {
          EXPECT_NEAR(timing.makespan(), lower_bound(workload), 1e-9);
        }
      }
    }
  }
  // With memory for one micro-batch, the five micro-batches run one after another: 1 for each
  // forward and 1 for each whole backward.
  const Workload workload = Workload::uniform(Placement::one_each(1), 5, {}, 0.0, 1.0);
  EXPECT_EQ(lower_bound(workload), 10.0);
}

}  // namespace
}  // namespace gpipe::internal
