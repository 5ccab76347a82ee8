#include "experiments/rows/speed_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SpeedTable, HasTheSourcesThatHaveFigures) {
  const PublishedTable table = speed_table(
      "speed",
      {{"plain", 8, 1, {}, {"28.500", "1"}}, {"pipeline-2", 8, 2, {1, 1}, {"", "1.246", "1.42"}}});
  EXPECT_EQ(table.title, "speed");
  ASSERT_EQ(table.columns.size(), 2u);
  EXPECT_THAT(table.columns[0].sources, ElementsAre("torchgpipe"));
  EXPECT_THAT(table.columns[1].sources, ElementsAre("torchgpipe", "Huang et al."));
  EXPECT_EQ(table.columns[1].compared_with, "torchgpipe");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0].figures.at("throughput").at("torchgpipe"), "28.500");
  EXPECT_EQ(table.rows[1].figures.count("throughput"), 0u);
  EXPECT_EQ(table.rows[1].figures.at("speed_up").at("Huang et al."), "1.42");
  EXPECT_EQ(table.ratio, "speed_up");
  EXPECT_EQ(table.ratio_of, "throughput");
  EXPECT_EQ(table.reference, "plain");
  EXPECT_NO_THROW(Report(table, {}));
  const PublishedTable both =
      speed_table("June", {{"plain", 8, 1, {}, {"", "1", "1", "100.506", "1.000"}}});
  EXPECT_THAT(both.columns[0].sources, ElementsAre("its script"));
  EXPECT_THAT(both.columns[1].sources, ElementsAre("torchgpipe", "its script", "Huang et al."));
  EXPECT_EQ(both.rows[0].figures.at("throughput").at("its script"), "100.506");
  EXPECT_THAT(speed_table("June", {{"plain", 8, 1, {}, {"", "1"}}}).columns[0].sources, IsEmpty());
}

}  // namespace
}  // namespace gpipe::experiments
