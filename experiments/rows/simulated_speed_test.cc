#include "experiments/rows/simulated_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A row takes 1 s forward and 2 s backward in each layer, and its output 100 bytes.
LayerCosts even(int64_t layers) {
  balance::Profile profile;
  profile.device = "device";
  profile.batch_rows = 1;
  profile.input = 100;
  for (int64_t i = 0; i < layers; ++i) {
    profile.layers.push_back({std::to_string(i), 1, 2, 10, 0, 100, 0, 100});
  }
  return measured_costs(profile);
}

constexpr balance::Machine kFree;

TEST(SimulateSpeed, ThePlainNetworkTakesWhatItsLayersTake) {
  const SimulatedSpeed speed = simulate_speed({"baseline", 4}, 10, even(2));
  EXPECT_DOUBLE_EQ(speed.seconds, 10 * 2 * 3.0) << "without transfers and actions";
  EXPECT_DOUBLE_EQ(speed.throughput, 1 / 6.0);
  ASSERT_EQ(speed.steps.size(), 2);
  EXPECT_EQ(speed.steps[0].batch_rows, 4);
  EXPECT_EQ(speed.steps[1].batch_rows, 2);
}

TEST(SimulateSpeed, APipelineHasTheBubbleOfThePaper) {
  SpeedVariant variant = {"pipeline-4", 16, 8, {1, 1, 1, 1}, {}, Checkpoint::kNever};
  // A step has 8 micro-batches of 2 rows in 4 stages, so it takes 11 times 6 s. An epoch has two
  // steps.
  EXPECT_DOUBLE_EQ(simulate_speed(variant, 32, even(4), kFree).seconds, 2 * 11 * 6.0);
  variant.checkpoint = Checkpoint::kAlways;
  EXPECT_DOUBLE_EQ(simulate_speed(variant, 32, even(4), kFree).seconds, 2 * 11 * 8.0);
  variant.checkpoint = Checkpoint::kExceptLast;
  // In the drain the last micro-batch comes first, and no recompute delays it. The 7 others are
  // recomputed. So the time is between those of the other two modes.
  const double except_last = simulate_speed(variant, 32, even(4), kFree).seconds;
  EXPECT_GT(except_last, 2 * 11 * 6.0);
  EXPECT_LT(except_last, 2 * 11 * 8.0);
}

// 7 rows in 3 micro-batches are 3, 3 and 1. The rest of the epoch, 2 rows, gives only 2
// micro-batches of 1 row. That is fewer than chunks, so torchgpipe checkpoints both.
TEST(SimulateSpeed, UnevenMicroBatchesAndTheShorterStepCount) {
  const SpeedVariant variant = {"pipeline-1", 7, 3, {2}};
  const SimulatedSpeed speed = simulate_speed(variant, 9, even(2), kFree);
  const double whole = 7 * 6.0 + 6 * 2.0;
  const double rest = 2 * 6.0 + 2 * 2.0;
  EXPECT_DOUBLE_EQ(speed.seconds, whole + rest);
  EXPECT_DOUBLE_EQ(speed.throughput, 9 / (whole + rest));
}

TEST(SimulateSpeed, LinksAndActionsTakeTime) {
  const SpeedVariant variant = {"pipeline-2", 1, 1, {1, 1}, {}, Checkpoint::kNever};
  const balance::Machine machine = {.bandwidth = 50, .latency = 0.25, .overhead = 0.5};
  EXPECT_DOUBLE_EQ(simulate_speed(variant, 1, even(2), machine).seconds,
                   2 * 3.0 + 2 * (100 / 50.0 + 0.25) + 4 * 0.5);
}

TEST(SimulateSpeed, TheScheduleCanBeAnother) {
  const SpeedVariant variant = {"pipeline-2", 8, 8, {1, 1}};
  // Under 1F1B the last stage recomputes nothing, so the epoch is not longer than under fill-drain.
  EXPECT_LE(simulate_speed(variant, 8, even(2), kFree, Schedule::one_f_one_b).seconds,
            simulate_speed(variant, 8, even(2), kFree).seconds);
}

TEST(FactorFor, GivesTheThroughput) {
  const SpeedVariant plain = {"baseline", 4};
  EXPECT_NEAR(factor_for(plain, 10, 1.0 / 60, even(2)), 10, 1e-6);
  const SpeedVariant variant = {"n2m1", 4, 1, {1, 2}, {}, Checkpoint::kAlways};
  const balance::Machine machine = {.bandwidth = 1000, .latency = 0.01, .overhead = 0.02};
  for (const double throughput : {0.001, 0.1, 2.0}) {
    const double factor = factor_for(variant, 10, throughput, even(3), machine);
    EXPECT_NEAR(simulate_speed(variant, 10, scaled(even(3), factor), machine).throughput,
                throughput, 1e-6 * throughput);
  }
  EXPECT_THAT([&] { factor_for(variant, 10, 1e6, even(3), machine); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("n2m1: no speed of the layers")));
  EXPECT_THAT([&] { factor_for(variant, 10, 0, even(3), machine); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("give one above 0")));
}

TEST(FactorFor, LayersWithoutTimesAreRefused) {
  EXPECT_THAT(
      [] {
        simulate_speed({"baseline", 4}, 10, scaled(even(2), 0));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("all times of the profile are 0")));
}

}  // namespace
}  // namespace gpipe::experiments
