#include "gpipe/schedule/default_schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "gpipe/schedule/search/generators.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/schedule/verify.h"

namespace gpipe {
namespace {

TEST(DefaultSchedule, IsThePlainOneOfTheShape) {
  EXPECT_EQ(default_schedule(Placement::one_each(3), 4), Schedule::one_f_one_b(3, 4));
  EXPECT_EQ(default_schedule(Placement::loop(1, 3), 4), sequential(3, 4));
  EXPECT_EQ(default_schedule(Placement::loop(2, 3), 4), interleaved(2, 3, 4));
  EXPECT_EQ(default_schedule(Placement::v_shape(2), 4), dualpipe_v(2, 4));
  EXPECT_EQ(default_schedule(Placement::of({1, 0, 0, 1}), 2),
            fill_drain_on(Placement::of({1, 0, 0, 1}), 2));
}

TEST(DefaultSchedule, RunsOnEveryPlacement) {
  const std::vector<std::vector<int64_t>> placements = {
      {0},          {0, 0, 0},       {0, 1, 1, 0}, {1, 0},
      {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {2, 0, 1, 0}, {0, 1, 2, 2, 1, 0}};
  for (const std::vector<int64_t>& workers : placements) {
    const Placement placement = Placement::of(workers);
    for (int64_t micro_batches = 1; micro_batches <= 5; ++micro_batches) {
      for (const Schedule& schedule :
           {default_schedule(placement, micro_batches), fill_drain_on(placement, micro_batches),
            placed_fill_drain(Schedule::gpipe(placement.stages(), micro_batches), placement)}) {
        EXPECT_NO_THROW(schedule.verify(Sends::kBuffered))
            << placement.to_text() << schedule.to_text();
        EXPECT_NO_THROW(schedule.check(placement));
      }
      EXPECT_TRUE(default_schedule(placement, micro_batches).verify(Sends::kBuffered).ascending);
    }
  }
}

TEST(DefaultSchedule, PlacedFillDrain) {
  const Schedule schedule = fill_drain_on(Placement::v_shape(2), 2);
  EXPECT_EQ(schedule.actions(0), (std::vector<Action>{{ActionKind::kForward, 0, 0},
                                                      {ActionKind::kForward, 0, 1},
                                                      {ActionKind::kForward, 3, 0},
                                                      {ActionKind::kForward, 3, 1},
                                                      {ActionKind::kBackward, 3, 0},
                                                      {ActionKind::kBackward, 3, 1},
                                                      {ActionKind::kBackward, 0, 0},
                                                      {ActionKind::kBackward, 0, 1}}));
  EXPECT_THROW(fill_drain_on(Placement::one_each(2), 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe
