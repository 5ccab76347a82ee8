#include "gpipe/schedule/search/join.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/search/generators.h"

namespace gpipe {
namespace {

SimulateOptions costs_of(double backward) { return {uniform_cost({1.0, backward, 1.0, 1.0}), {}}; }

TEST(Joined, TakesPairsThatNobodyWaitsFor) {
  // The halves of stage 0 are joined, because stage 0 sends no gradient. Those of stage 1 are not,
  // because stage 0 would wait longer for the gradient.
  const Schedule schedule = Schedule::from_text(
      "stages 2\nmicro_batches 1\nworker 0: F0.0 I0.0 W0.0\nworker 1: F1.0 I1.0 W1.0");
  EXPECT_EQ(joined(schedule, costs_of(2.0)).to_text(),
            "stages 2\nmicro_batches 1\nworker 0: F0.0 B0.0\nworker 1: F1.0 I1.0 W1.0\n");
  EXPECT_EQ(joined(schedule, costs_of(2.5)), schedule) << "a whole backward would cost more";
  EXPECT_EQ(splits(schedule), 2);
}

TEST(Joined, NeverSlowerNeverLargerAndAscending) {
  for (int64_t p = 1; p <= 4; ++p) {
    for (const Schedule& schedule : {zb_h1(p, 2 * p), zero_bubble_interleaved(p, 2, 2 * p),
                                     dualpipe_v(p, 2 * p), zb_v(p, 2 * p)}) {
      for (const double backward : {2.0, 1.7}) {
        const SimulateOptions costs = costs_of(backward);
        const Schedule fewer = joined(schedule, costs);
        EXPECT_LE(simulate(fewer, costs).makespan, simulate(schedule, costs).makespan);
        EXPECT_LE(splits(fewer), splits(schedule));
        const ScheduleFacts before = schedule.verify(Sends::kBuffered);
        const ScheduleFacts after = fewer.verify(Sends::kBuffered);
        EXPECT_TRUE(after.ascending);
        EXPECT_EQ(after.worker_peak_live, before.worker_peak_live);
      }
    }
  }
  // ZB-H1 splits all 32 cells of 4 stages and 8 micro-batches. At least the 8 cells of stage 0 are
  // joined, because stage 0 sends no gradient.
  EXPECT_LE(splits(joined(zb_h1(4, 8), costs_of(2.0))), 24);
}

// joined() must make a few passes over the table, and not a simulation for almost every pair,
// because there may be thousands of pairs of which only a few can be joined.
TEST(Joined, LooksAtEachActionAFewTimes) {
  const StageCost cost{1.0, 1.8, 1.1, 0.7};
  const Schedule schedule = zb_h2(8, 32, {cost, 0.1});
  int64_t asked = 0;
  SimulateOptions costs;
  costs.action = [&asked, cost_of = uniform_cost(cost)](const Action& action) {
    ++asked;
    return cost_of(action);
  };
  costs.transfer = [](const Transfer&) { return 0.1; };
  const Schedule fewer = joined(schedule, costs);
  EXPECT_LE(asked, 6 * 3 * 8 * 32) << "each action's cost is asked for at most six times";
  EXPECT_LT(splits(fewer), splits(schedule));
  EXPECT_NEAR(simulate(fewer, costs).makespan, simulate(schedule, costs).makespan, 1e-9);
}

}  // namespace
}  // namespace gpipe
