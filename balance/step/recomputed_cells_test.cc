#include "balance/step/recomputed_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(RecomputedCells, AllNoneOrAllButThoseThatFollowAtOnce) {
  const Schedule schedule = Schedule::one_f_one_b(2, 3);
  EXPECT_THAT(recomputed_cells(schedule, Checkpoint::kAlways), Each(ElementsAre(true, true, true)));
  EXPECT_THAT(recomputed_cells(schedule, Checkpoint::kNever),
              Each(ElementsAre(false, false, false)));
  // The last stage runs each backward right after its forward.
  EXPECT_THAT(recomputed_cells(schedule, Checkpoint::kExceptLast),
              ElementsAre(ElementsAre(true, true, true), ElementsAre(false, false, false)));
  EXPECT_THAT(recomputed_cells(Schedule::gpipe(2, 3), Checkpoint::kExceptLast)[1],
              ElementsAre(true, true, false));
}

TEST(RecomputedCells, AModeForEachStage) {
  EXPECT_THAT(recomputed_cells(Schedule::gpipe(2, 2), {Checkpoint::kNever, Checkpoint::kAlways}),
              ElementsAre(ElementsAre(false, false), ElementsAre(true, true)));
  EXPECT_THROW(recomputed_cells(Schedule::gpipe(2, 2), std::vector{Checkpoint::kNever}),
               std::out_of_range);
}

}  // namespace
}  // namespace gpipe::balance
