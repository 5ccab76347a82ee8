#include "balance/step/recomputed_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<std::vector<bool>> with_one_mode(const Schedule& schedule, Checkpoint mode) {
  return recomputed_cells(schedule, std::vector<Checkpoint>(2, mode));
}

TEST(RecomputedCells, AllNoneOrAllButThoseThatFollowAtOnce) {
  const Schedule schedule = Schedule::one_f_one_b(2, 3);
  EXPECT_THAT(with_one_mode(schedule, Checkpoint::kAlways), Each(ElementsAre(true, true, true)));
  EXPECT_THAT(with_one_mode(schedule, Checkpoint::kNever), Each(ElementsAre(false, false, false)));
  // The last stage runs each backward right after its forward.
  EXPECT_THAT(with_one_mode(schedule, Checkpoint::kExceptLast),
              ElementsAre(ElementsAre(true, true, true), ElementsAre(false, false, false)));
  EXPECT_THAT(with_one_mode(Schedule::gpipe(2, 3), Checkpoint::kExceptLast)[1],
              ElementsAre(true, true, false));
}

TEST(RecomputedCells, AModeForEachStage) {
  EXPECT_THAT(recomputed_cells(Schedule::gpipe(2, 2), {Checkpoint::kNever, Checkpoint::kAlways}),
              ElementsAre(ElementsAre(false, false), ElementsAre(true, true)));
  EXPECT_THROW(recomputed_cells(Schedule::gpipe(2, 2), {Checkpoint::kNever}), std::out_of_range);
}

}  // namespace
}  // namespace gpipe::balance
