#include "diagnose/contradiction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::diagnosis {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A diagnosis of a step of 100 ms in two partitions.
Diagnosis diagnosis(double work, double recompute, double overhead) {
  Diagnosis d;
  d.step = 0.1;
  d.partitions = {{{0, 0}, 0.01, 0.01, 0}, {{1, 1}, work, recompute, 0}};
  d.parts = {{Cause::kImbalance, 0.02}, {Cause::kOverhead, overhead}};
  return d;
}

TEST(Contradiction, ThereIsNoneInOrdinaryNoise) {
  EXPECT_THAT(contradiction(diagnosis(0.09, 0, 0.01)), IsEmpty());
  EXPECT_THAT(contradiction(diagnosis(0.08, 0.04, 0)), IsEmpty());
  EXPECT_THAT(contradiction(diagnosis(0.09, 0, 0.049)), IsEmpty());
  EXPECT_THAT(contradiction(diagnosis(0.09, 0, -0.049)), IsEmpty());
}

TEST(Contradiction, APartitionCannotHaveMoreToDoThanTheStepTakes) {
  EXPECT_THAT(contradiction(diagnosis(0.387, 0, 0)),
              AllOf(HasSubstr("contradict each other: partition 1 alone has 387 ms to do in a step "
                              "that takes 100 ms."),
                    HasSubstr("Something else ran on this machine"), HasSubstr("diagnose again")));
  // Recomputes count as work, so the partition has 80 + 50 ms to do.
  EXPECT_THAT(contradiction(diagnosis(0.08, 0.05, 0)), HasSubstr("has 130 ms"));
}

TEST(Contradiction, OverheadCannotBeMostOfTheStep) {
  EXPECT_THAT(contradiction(diagnosis(0.09, 0, -0.252)),
              AllOf(HasSubstr("a step would take 352 ms, but it takes 100 ms"),
                    HasSubstr("diagnose again")));
  EXPECT_THAT(contradiction(diagnosis(0.04, 0, 0.06)),
              AllOf(HasSubstr("explain only 40 ms of a step of 100 ms"),
                    HasSubstr("micro-batches are too small")));
}

TEST(Disturbance, IsOtherWorkWithoutRoomForIt) {
  EXPECT_THAT(disturbance({/*others=*/0.43, /*idle=*/0.02}),
              AllOf(HasSubstr("was busy: other work had 43 % of the cores' time"),
                    HasSubstr("idle for 2 % only"), HasSubstr("Diagnose again")));
  EXPECT_THAT(disturbance({0.2, 0.7}), IsEmpty())
      << "other work does no harm on a machine with idle cores (64 cores, say)";
  EXPECT_THAT(disturbance({0.05, 0}), IsEmpty());
}

}  // namespace
}  // namespace gpipe::diagnosis
