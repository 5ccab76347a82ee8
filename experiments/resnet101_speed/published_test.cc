#include "experiments/resnet101_speed/published.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>

namespace gpipe::experiments {
namespace {

TEST(PublishedSpeed, HasARowForEveryVariant) {
  const PublishedTable table = published_speed();
  ASSERT_EQ(table.rows.size(), speed_variants().size());
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const SpeedVariant& variant = speed_variants()[i];
    EXPECT_EQ(table.rows[i].experiment, variant.name);
    if (variant.balance.empty()) continue;
    EXPECT_EQ(std::accumulate(variant.balance.begin(), variant.balance.end(), int64_t{0}), 370);
  }
}

TEST(PublishedSpeed, SpeedUpsAreToTheBaseline) {
  Outcome baseline;
  baseline.origin = Origin::kMeasured;
  baseline.figures["throughput"] = 50;
  Outcome pipeline = baseline;
  pipeline.figures["throughput"] = 75;
  const Report report(published_speed(), {{"baseline", baseline}, {"pipeline-2", pipeline}});
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["ours"], 1.5);
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["published"]["Huang et al."], 1.42);
}

}  // namespace
}  // namespace gpipe::experiments
