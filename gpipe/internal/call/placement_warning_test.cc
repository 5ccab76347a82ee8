#include "gpipe/internal/call/placement_warning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/schedule/schedule.h"
#include "gpipe/testing/log_capture.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Stages 0 and 2 are on worker 0, and stage 1 on worker 1.
Schedule on_two_workers() {
  using Kind = ActionKind;
  return Schedule::create(
      3, 1,
      {{{Kind::kForward, 0, 0}, {Kind::kForward, 2, 0}, {Kind::kBackward, 2, 0}},
       {{Kind::kForward, 1, 0}, {Kind::kBackward, 1, 0}}});
}

TEST(PlacementWarning, IsGivenOnceForAScheduleThatNeedsAPlacement) {
  const testing::LogCapture log;
  warn_without_placement(Schedule::one_f_one_b(3, 1), 3, /*on_cpu=*/true);
  warn_without_placement(on_two_workers(), 3, /*on_cpu=*/false);
  warn_without_placement(on_two_workers(), 4, /*on_cpu=*/true);  // too few stages: refused later
  EXPECT_THAT(log.warnings(), IsEmpty());
  for (int k = 0; k < 2; ++k) {
    warn_without_placement(on_two_workers(), 3, /*on_cpu=*/true);
    EXPECT_THAT(log.warnings(),
                ElementsAre(AllOf(HasSubstr("runs 3 stages on 2 workers"),
                                  HasSubstr("placement(Placement::of({0, 1, 0}))"))));
  }
}

}  // namespace
}  // namespace gpipe::internal
