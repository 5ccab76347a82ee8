#include "experiments/resnet101_speed/published.h"

#include <gtest/gtest.h>

#include "experiments/rows/speed_table.h"
#include "experiments/rows/speed_table_checks.h"

namespace gpipe::experiments {
namespace {

Result result(const char* name, double throughput) {
  Outcome outcome;
  outcome.origin = Origin::kMeasured;
  outcome.figures["throughput"] = throughput;
  return {name, outcome};
}

TEST(PublishedSpeed, BalancesHaveAllLayers) {
  expect_balances_of(370, speed_variants(Edition::kCurrent));
  expect_balances_of(304, speed_variants(Edition::kJune2019));
}

TEST(PublishedSpeed, SpeedUpsAreToTheBaseline) {
  const Report report(speed_table("", speed_variants(Edition::kCurrent)),
                      {result("baseline", 50), result("pipeline-2", 75)});
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["ours"], 1.5);
  EXPECT_EQ(json["rows"][2]["figures"]["speed_up"]["published"]["Huang et al."], 1.42);
}

TEST(PublishedSpeed, OfJune2019HasTheReadmesSpeedUpsAndTheScriptsThroughputs) {
  const Report report(speed_table("", speed_variants(Edition::kJune2019)),
                      {result("naive-1", 50), result("pipeline-8", 100)});
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["rows"][4]["figures"]["speed_up"]["ours"], 2);
  EXPECT_EQ(json["rows"][4]["figures"]["speed_up"]["published"]["torchgpipe"], 2.808);
  EXPECT_EQ(json["rows"][4]["figures"]["speed_up"]["published"]["its script"], 3.114);
  EXPECT_EQ(json["rows"][4]["figures"]["throughput"]["published"], Json({{"its script", 312.945}}));
}

}  // namespace
}  // namespace gpipe::experiments
