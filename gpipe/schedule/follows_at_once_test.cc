#include "gpipe/schedule/follows_at_once.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe {
namespace {

using ::testing::ElementsAre;

TEST(FollowsAtOnce, TheLastMicroBatchUnderFillDrain) {
  EXPECT_THAT(follows_at_once(Schedule::gpipe(2, 3)),
              ElementsAre(ElementsAre(false, false, true), ElementsAre(false, false, true)));
}

TEST(FollowsAtOnce, AllOfTheLastStageUnder1F1B) {
  EXPECT_THAT(follows_at_once(Schedule::one_f_one_b(2, 3)),
              ElementsAre(ElementsAre(false, false, false), ElementsAre(true, true, true)));
}

TEST(FollowsAtOnce, AHalfOfABackwardCounts) {
  EXPECT_THAT(follows_at_once(Schedule::from_text("stages 1\nmicro_batches 2\n"
                                                  "worker 0: F0.0 I0.0 F0.1 W0.0 I0.1 W0.1\n")),
              ElementsAre(ElementsAre(true, false)));
}

TEST(FollowsAtOnce, OtherCellsMayMoveInBetween) {
  EXPECT_THAT(follows_at_once(Schedule::from_text("stages 1\nmicro_batches 2\n"
                                                  "worker 0: F0.0 F0.1 O0.0 B0.1 L0.0 B0.0\n")),
              ElementsAre(ElementsAre(false, true)));
  EXPECT_THAT(follows_at_once(Schedule::from_text("stages 1\nmicro_batches 2\n"
                                                  "worker 0: F0.0 F0.1 O0.1 L0.1 B0.1 B0.0\n")),
              ElementsAre(ElementsAre(false, false)));
}

}  // namespace
}  // namespace gpipe
