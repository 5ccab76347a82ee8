#include "experiments/resnet101_accuracy/lr_schedule.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::experiments {
namespace {

constexpr double kEqual = 1e-12;

// The learning rates of the published runs at the first and the last step of every stretch. A step
// exactly on the border belongs to the later stretch.
struct Golden {
  int64_t batch_size;
  int64_t steps_per_epoch;
  double peak;
  int64_t middle_step;  // of the warm-up
  double middle;
  double second;  // at step 1
};

class LrScheduleTest : public ::testing::TestWithParam<Golden> {};

TEST_P(LrScheduleTest, FollowsThePublishedRuns) {
  const Golden& golden = GetParam();
  LrSchedule schedule;
  schedule.batch_size = golden.batch_size;
  schedule.steps_per_epoch = golden.steps_per_epoch;
  const int64_t s = golden.steps_per_epoch;
  EXPECT_NEAR(schedule.at(0), 0.1, kEqual);
  EXPECT_NEAR(schedule.at(1), golden.second, kEqual);
  EXPECT_NEAR(schedule.at(golden.middle_step), golden.middle, kEqual);
  EXPECT_NEAR(schedule.at(4 * s), golden.peak, kEqual);
  EXPECT_NEAR(schedule.at(30 * s - 1), golden.peak, kEqual);
  EXPECT_NEAR(schedule.at(30 * s), golden.peak / 10, kEqual);
  EXPECT_NEAR(schedule.at(60 * s - 1), golden.peak / 10, kEqual);
  EXPECT_NEAR(schedule.at(60 * s), golden.peak / 100, kEqual);
  EXPECT_NEAR(schedule.at(80 * s - 1), golden.peak / 100, kEqual);
  EXPECT_NEAR(schedule.at(80 * s), golden.peak / 1000, kEqual);
  EXPECT_NEAR(schedule.at(90 * s - 1), golden.peak / 1000, kEqual);
}

INSTANTIATE_TEST_SUITE_P(
    BatchSizes, LrScheduleTest,
    ::testing::Values(Golden{128, 10009, 0.1, 5004, 0.1, 0.1},
                      Golden{256, 5004, 0.1, 2502, 0.1, 0.1},
                      Golden{1024, 1251, 0.4, 625, 0.13747002398081537, 0.10005995203836932},
                      Golden{4096, 312, 1.6, 156, 0.28750000000000003, 0.10120192307692309}),
    [](const auto& info) { return "Batch" + std::to_string(info.param.batch_size); });

TEST(LrSchedule, LastStepsOfTheWarmUp) {
  LrSchedule schedule;
  schedule.batch_size = 1024;
  schedule.steps_per_epoch = 1251;
  EXPECT_NEAR(schedule.at(5003), 0.39994004796163074, kEqual);
  schedule.batch_size = 4096;
  schedule.steps_per_epoch = 312;
  EXPECT_NEAR(schedule.at(1247), 1.5987980769230772, kEqual);
  EXPECT_NEAR(schedule.at(312), 0.475, kEqual);
}

TEST(LrSchedule, AShorterRunKeepsTheShares) {
  LrSchedule schedule;
  schedule.batch_size = 128;
  schedule.reference_batch = 32;
  schedule.steps_per_epoch = 100;
  schedule.epochs = 9;  // a tenth of the published run
  EXPECT_NEAR(schedule.at(0), 0.1, kEqual);
  EXPECT_NEAR(schedule.at(20), 0.25, kEqual);
  EXPECT_NEAR(schedule.at(40), 0.4, kEqual);
  EXPECT_NEAR(schedule.at(299), 0.4, kEqual);
  EXPECT_NEAR(schedule.at(301), 0.04, kEqual);
  EXPECT_NEAR(schedule.at(899), 0.0004, kEqual);
}

TEST(LrSchedule, LinearDecayEndsAtZero) {
  LrSchedule schedule;
  schedule.batch_size = 128;
  schedule.reference_batch = 64;
  schedule.steps_per_epoch = 45;
  schedule.epochs = 2;
  schedule.decay = LrDecay::kLinear;
  EXPECT_NEAR(schedule.at(0), 0.1, kEqual);
  EXPECT_NEAR(schedule.at(2), 0.15 * (1 - 2 / 90.0), kEqual);
  EXPECT_NEAR(schedule.at(45), 0.1, kEqual);
  EXPECT_NEAR(schedule.at(89), 0.2 / 90, kEqual);
  EXPECT_NEAR(schedule.at(90), 0, kEqual);
}

}  // namespace
}  // namespace gpipe::experiments
