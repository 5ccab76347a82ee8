#include "experiments/unet_timeline/published.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>

namespace gpipe::experiments {
namespace {

TEST(PublishedTimeline, HasARowForEveryVariant) {
  const PublishedTable table = published_timeline();
  ASSERT_EQ(table.rows.size(), ablations().size());
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    EXPECT_EQ(table.rows[i].experiment, ablations()[i].name);
    for (const Column& column : table.columns) {
      EXPECT_EQ(table.rows[i].figures.at(column.key).count("torchgpipe"), 1u);
    }
  }
  EXPECT_EQ(std::accumulate(published_balance().begin(), published_balance().end(), int64_t{0}),
            241);
}

// Each row has one optimization more than the one before.
TEST(PublishedTimeline, RowsAddOneOptimizationEach) {
  const auto optimizations = [](const Ablation& ablation) {
    return (ablation.early_recomputes ? 0 : 1) + (ablation.copy_streams ? 1 : 0) +
           (ablation.direct_skips ? 1 : 0);
  };
  for (std::size_t i = 0; i < ablations().size(); ++i) {
    EXPECT_EQ(optimizations(ablations()[i].ablation), static_cast<int>(i));
  }
}

}  // namespace
}  // namespace gpipe::experiments
