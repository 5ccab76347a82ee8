#include "experiments/rows/memory_experiment.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::experiments {
namespace {

// What flags do is tested by the shell tests of the experiments.

TEST(MemoryExperimentTest, NetworksAreDivided) {
  EXPECT_EQ(divide("unet:24,160", 6, 16, 1, 2), "unet:4,10");
  EXPECT_EQ(divide("unet:6,72", 6, 16, 1, 2), "unet:1,5");
  EXPECT_EQ(divide("unet:6,72", 100, 100, 1, 2), "unet:1,2");
  EXPECT_EQ(divide("unet:24,160", 1, 1, 1, 2), "unet:24,160");
}

TEST(MemoryExperimentTest, TheFirstNumberStaysAMultiple) {
  EXPECT_EQ(divide("amoebanetd:72,512", 6, 16, 3, 8), "amoebanetd:12,32");
  EXPECT_EQ(divide("amoebanetd:18,208", 6, 16, 3, 8), "amoebanetd:3,13");
  EXPECT_EQ(divide("amoebanetd:36,544", 5, 100, 3, 8), "amoebanetd:6,8");
}

TEST(MemoryExperimentTest, OtherNetworksAreNotDivided) {
  EXPECT_THROW(divide("resnet:101", 2, 2, 1, 1), std::invalid_argument);
  EXPECT_THROW(divide("unet:a,2", 2, 2, 1, 1), std::invalid_argument);
}

TEST(MemoryExperimentTest, MemoryIsComparedWithTorchgpipe) {
  const auto columns = memory_columns({"torchgpipe"}, {"torchgpipe", "other"}, {});
  ASSERT_EQ(columns.size(), 4u);
  EXPECT_EQ(columns[0].compared_with, "");
  EXPECT_EQ(columns[1].compared_with, "torchgpipe");
  EXPECT_EQ(columns[2].compared_with, "torchgpipe");
  EXPECT_EQ(columns[3].compared_with, "");
}

}  // namespace
}  // namespace gpipe::experiments
