#include "experiments/resnet101_speed/published.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>

namespace gpipe::experiments {
namespace {

Result result(const char* name, double throughput) {
  Outcome outcome;
  outcome.origin = Origin::kMeasured;
  outcome.figures["throughput"] = throughput;
  return {name, outcome};
}

TEST(PublishedSpeed, HasARowForEveryVariant) {
  for (const Edition edition : {Edition::kCurrent, Edition::kJune2019}) {
    const PublishedTable table = published_speed(edition);
    const std::vector<SpeedVariant>& variants = speed_variants(edition);
    ASSERT_EQ(table.rows.size(), variants.size());
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      EXPECT_EQ(table.rows[i].experiment, variants[i].name);
      const std::vector<int64_t>& balance = variants[i].balance;
      if (balance.empty()) continue;
      EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}),
                edition == Edition::kCurrent ? 370 : 304);
    }
  }
}

TEST(PublishedSpeed, SpeedUpsAreToTheBaseline) {
  const Report report(published_speed(Edition::kCurrent),
                      {result("baseline", 50), result("pipeline-2", 75)});
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["ours"], 1.5);
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["published"]["Huang et al."], 1.42);
}

TEST(PublishedSpeed, OfJune2019HasOnlySpeedUps) {
  const Report report(published_speed(Edition::kJune2019),
                      {result("naive-1", 50), result("pipeline-8", 100)});
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["rows"][4]["figures"]["speed_up"]["ours"], 2);
  EXPECT_EQ(json["rows"][4]["figures"]["speed_up"]["published"]["torchgpipe"], 2.808);
  EXPECT_TRUE(json["rows"][4]["figures"]["throughput"]["published"].empty());
}

}  // namespace
}  // namespace gpipe::experiments
