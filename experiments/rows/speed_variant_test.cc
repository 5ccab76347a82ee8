#include "experiments/rows/speed_variant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StepsOfEpoch, ThePlainNetworkRunsWholeMiniBatches) {
  const std::vector<EpochSteps> steps = steps_of_epoch({"baseline", 118}, 50000);
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].times, 423);
  EXPECT_THAT(steps[0].micro_batches, ElementsAre(118));
  EXPECT_EQ(steps[1].times, 1);
  EXPECT_THAT(steps[1].micro_batches, ElementsAre(86));
  EXPECT_EQ(steps[0].checkpoint, Checkpoint::kNever);
  EXPECT_EQ(steps_of_epoch({"baseline", 40}, 10000).size(), 1) << "nothing is left";
  EXPECT_EQ(steps_of_epoch({"baseline", 40}, 30)[0].times, 1) << "only the shorter one";
}

// The expected sizes are torchgpipe's own, seen by running its stages (ResNet-101 and U-Net speed).
TEST(StepsOfEpoch, AreCutAsByTorchgpipe) {
  const SpeedVariant p2 = {"pipeline-2", 25000, 1667, {135, 235}};
  std::vector<EpochSteps> steps = steps_of_epoch(p2, 50000);
  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0].times, 2);
  ASSERT_EQ(steps[0].micro_batches.size(), 1667);
  EXPECT_EQ(std::count(steps[0].micro_batches.begin(), steps[0].micro_batches.end(), 15), 1666);
  EXPECT_EQ(steps[0].micro_batches.back(), 10);
  EXPECT_EQ(steps[0].checkpoint, Checkpoint::kExceptLast);

  const SpeedVariant p4 = {"pipeline-4", 5632, 256, {44, 92, 124, 110}};
  steps = steps_of_epoch(p4, 50000);
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0].times, 8);
  EXPECT_EQ(steps[0].micro_batches.size(), 256);
  EXPECT_EQ(steps[1].micro_batches.size(), 248);
  EXPECT_EQ(steps[1].micro_batches.front(), 20);
  EXPECT_EQ(steps[1].micro_batches.back(), 4);
  EXPECT_EQ(steps[1].checkpoint, Checkpoint::kAlways) << "248 < 256: torchgpipe's threshold";

  steps = steps_of_epoch({"pipeline-2", 512, 32, {104, 137}}, 10000);
  EXPECT_EQ(steps[1].micro_batches.size(), 31);
  EXPECT_EQ(steps[1].micro_batches.back(), 2);
}

TEST(StepsOfEpoch, ModesAreTorchgpipes) {
  SpeedVariant variant = {"n2m1", 96, 1, {7, 17}, {}, Checkpoint::kAlways};
  EXPECT_EQ(steps_of_epoch(variant, 10000)[0].checkpoint, Checkpoint::kAlways);
  variant.checkpoint = Checkpoint::kExceptLast;
  EXPECT_EQ(steps_of_epoch(variant, 10000)[0].checkpoint, Checkpoint::kNever);
  variant.chunks = 2;
  EXPECT_EQ(steps_of_epoch(variant, 10000)[0].checkpoint, Checkpoint::kExceptLast);
  variant.checkpoint = Checkpoint::kNever;
  variant.chunks = 60;
  EXPECT_EQ(steps_of_epoch(variant, 10000)[0].checkpoint, Checkpoint::kNever);
}

TEST(StepsOfEpoch, MistakesAreNamed) {
  EXPECT_THAT(
      [] {
        steps_of_epoch({"x", 0}, 5);
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("x: an epoch of 5 samples in")));
  EXPECT_THROW(steps_of_epoch({"x", 1}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
