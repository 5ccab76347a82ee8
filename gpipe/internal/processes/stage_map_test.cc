#include "gpipe/internal/processes/stage_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const Placement& placement, int64_t size) {
  try {
    (void)StageMap(placement, 0, size);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(StageMap, AloneHasEverything) {
  const StageMap stage_map(Placement::v_shape(2));
  EXPECT_THAT(stage_map.workers(), ElementsAre(0, 1));
  for (int64_t stage = 0; stage < 4; ++stage) EXPECT_TRUE(stage_map.has_stage(stage)) << stage;
  EXPECT_THAT(stage_map.process_of_worker(), ElementsAre(0, 0));
}

TEST(StageMap, AWorkerInEachProcess) {
  const StageMap stage_map(Placement::v_shape(2), 1, 2);
  EXPECT_THAT(stage_map.workers(), ElementsAre(1));
  EXPECT_FALSE(stage_map.has_stage(0));
  EXPECT_TRUE(stage_map.has_stage(1));
  EXPECT_TRUE(stage_map.has_stage(2));
  EXPECT_EQ(stage_map.process_of_stage(3), 0);
}

TEST(StageMap, SeveralWorkersInAProcess) {
  const Placement placement = Placement::one_each(4).processes({1, 0, 0, 1});
  const StageMap stage_map(placement, 1, 2);
  EXPECT_THAT(stage_map.workers(), ElementsAre(0, 3));
  EXPECT_EQ(stage_map.process_of_stage(1), 0);
  EXPECT_TRUE(stage_map.has_stage(3));
}

TEST(StageMap, RefusesOtherNumbersOfProcesses) {
  EXPECT_THAT(refusal(Placement::one_each(4), 2),
              HasSubstr("worker 2 in process 2, but there are 2"));
  EXPECT_THAT(refusal(Placement::one_each(2), 4), HasSubstr("process 2 of 4 has no worker"));
  EXPECT_THAT(refusal(Placement::one_each(2).processes({0, 1}), 1),
              HasSubstr("worker 1 in process 1, but there are 1"));
}

}  // namespace
}  // namespace gpipe::internal
