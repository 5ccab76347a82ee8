#include "balance/step/shared_cores.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {
namespace {

// Simulates a run. Times are whole numbers, so that sums are exact.
Simulation run(int64_t stages, int64_t micro_batches) {
  return simulate(Schedule::gpipe(stages, micro_batches), {uniform_cost({1.0, 2.0}), {}});
}

TEST(ShareCores, EnoughCoresChangeNothing) {
  for (const int64_t cores : {0, 4, 7}) {
    const SharedRun shared = share_cores(run(4, 8), cores, 1.0);
    EXPECT_EQ(shared.makespan, (8 + 3) * 3.0) << cores;
    for (const double busy : shared.busy) EXPECT_EQ(busy, 8 * 3.0) << cores;
  }
}

TEST(ShareCores, OneCoreTakesTheSumOfAllWork) {
  const SharedRun shared = share_cores(run(4, 8), 1, 1.0);
  EXPECT_DOUBLE_EQ(shared.makespan, 4 * 8 * 3.0);
}

TEST(ShareCores, OnlyTheMomentsWithTooManyWorkersStretch) {
  // Forwards take five slots, in which 1, 2, 3, 2 and 1 stages are busy. On two cores the slot with
  // three stages is stretched by 3/2.
  const SharedRun shared = share_cores(run(3, 3), 2, 1.0);
  EXPECT_DOUBLE_EQ(shared.makespan, (5 + 0.5) * 3.0);
  EXPECT_DOUBLE_EQ(shared.busy[0], (3 + 0.5) * 3.0);
}

TEST(ShareCores, ContentionIsFeltBesideOthersOnly) {
  // Forwards take three slots, in which 1, 2 and 1 stages are busy. Contention stretches only the
  // slot with two.
  const SharedRun shared = share_cores(run(2, 2), 0, 1.5);
  EXPECT_DOUBLE_EQ(shared.makespan, (3 + 0.5) * 3.0);
  EXPECT_DOUBLE_EQ(share_cores(run(1, 5), 0, 1.5).makespan, 15.0) << "alone";
}

// O0.0 waits from 2 s to 4 s.
TEST(ShareCores, AWaitForACopyIsNotBusy) {
  SimulateOptions costs{uniform_cost({1.0, 2.0}), {}};
  costs.offload.bytes = [](const Action&) { return 3.0; };
  costs.offload.to_host = 1.0;
  const Simulation waits =
      simulate(Schedule::from_text("stages 1\nmicro_batches 3\n"
                                   "worker 0: F0.0 F0.1 O0.0 F0.2 B0.2 L0.0 B0.1 B0.0\n"),
               costs);
  const SharedRun shared = share_cores(waits, 0, 1.0);
  EXPECT_DOUBLE_EQ(shared.makespan, 3 * 3.0 + 2.0);
  EXPECT_DOUBLE_EQ(shared.busy[0], 3 * 3.0);
}

TEST(ShareCores, NothingTakesNoTime) {
  const SharedRun shared =
      share_cores(simulate(Schedule::gpipe(2, 3), {uniform_cost({0, 0, 0, 0}), {}}), 1, 2.0);
  EXPECT_EQ(shared.makespan, 0);
  EXPECT_EQ(shared.busy, std::vector<double>(2, 0.0));
}

}  // namespace
}  // namespace gpipe::balance
