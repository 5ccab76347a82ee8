#include "gpipe/internal/processes/residence.h"

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
    (void)Residence(placement, 0, size);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Residence, AloneHasEverything) {
  const Residence residence(Placement::v_shape(2));
  EXPECT_THAT(residence.workers(), ElementsAre(0, 1));
  for (int64_t stage = 0; stage < 4; ++stage) EXPECT_TRUE(residence.has_stage(stage)) << stage;
  EXPECT_THAT(residence.process_of_worker(), ElementsAre(0, 0));
}

TEST(Residence, AWorkerInEachProcess) {
  const Residence residence(Placement::v_shape(2), 1, 2);
  EXPECT_THAT(residence.workers(), ElementsAre(1));
  EXPECT_FALSE(residence.has_stage(0));
  EXPECT_TRUE(residence.has_stage(1));
  EXPECT_TRUE(residence.has_stage(2));
  EXPECT_EQ(residence.process_of_stage(3), 0);
}

TEST(Residence, SeveralWorkersInAProcess) {
  const Placement placement = Placement::one_each(4).processes({1, 0, 0, 1});
  const Residence residence(placement, 1, 2);
  EXPECT_THAT(residence.workers(), ElementsAre(0, 3));
  EXPECT_EQ(residence.process_of_stage(1), 0);
  EXPECT_TRUE(residence.has_stage(3));
}

TEST(Residence, RefusesOtherNumbersOfProcesses) {
  EXPECT_THAT(refusal(Placement::one_each(4), 2),
              HasSubstr("worker 2 in process 2, but there are 2"));
  EXPECT_THAT(refusal(Placement::one_each(2), 4), HasSubstr("process 2 of 4 has no worker"));
  EXPECT_THAT(refusal(Placement::one_each(2).processes({0, 1}), 1),
              HasSubstr("worker 1 in process 1, but there are 1"));
}

}  // namespace
}  // namespace gpipe::internal
