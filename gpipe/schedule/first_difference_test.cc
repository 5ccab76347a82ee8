#include "gpipe/schedule/first_difference.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

std::string difference(const Schedule& a, const Schedule& b) {
  return first_difference(a, "on rank 0", b, "on rank 3");
}

TEST(FirstDifference, OfActionsSaysWhereAndWhat) {
  EXPECT_EQ(difference(Schedule::gpipe(3, 4), Schedule::one_f_one_b(3, 4)),
            "action 3 of worker 0 (both counted from 0) is F0.3, the forward of stage 0 for "
            "micro-batch 3, on rank 0, and B0.0, the backward of stage 0 for micro-batch 0, on "
            "rank 3");
  // Worker 0 has the same actions in both schedules, so the message names worker 1.
  const Schedule split = Schedule::from_text(
      "stages 2\nmicro_batches 1\nworker 0: F0.0 B0.0\nworker 1: F1.0 I1.0 W1.0\n");
  const Schedule other = Schedule::from_text(
      "stages 2\nmicro_batches 1\nworker 0: F0.0 B0.0\nworker 1: F1.0 W1.0 I1.0\n");
  EXPECT_EQ(difference(split, other),
            "action 1 of worker 1 (both counted from 0) is I1.0, the gradients of inputs of stage "
            "1 for micro-batch 0, on rank 0, and W1.0, the gradients of weights of stage 1 for "
            "micro-batch 0, on rank 3");
}

TEST(FirstDifference, OfCounts) {
  EXPECT_EQ(difference(Schedule::gpipe(3, 4), Schedule::gpipe(2, 4)),
            "it has 3 stages on rank 0, and 2 on rank 3");
  EXPECT_EQ(difference(Schedule::gpipe(3, 4), Schedule::gpipe(3, 5)),
            "it has 4 micro-batches on rank 0, and 5 on rank 3");
  const Schedule one_worker =
      Schedule::from_text("stages 2\nmicro_batches 1\nworker 0: F0.0 F1.0 B1.0 B0.0\n");
  EXPECT_EQ(difference(Schedule::gpipe(2, 1), one_worker),
            "it has 2 workers on rank 0, and 1 on rank 3");
  EXPECT_EQ(difference(Schedule::gpipe(2, 1), Schedule::gpipe(2, 1).only({ActionKind::kForward})),
            "worker 0 has 2 actions on rank 0, and 1 on rank 3; up to there they agree");
}

TEST(FirstDifference, OfEqualOnesIsNone) {
  EXPECT_EQ(difference(Schedule::gpipe(3, 4), Schedule::gpipe(3, 4)), "");
}

}  // namespace
}  // namespace gpipe::internal
