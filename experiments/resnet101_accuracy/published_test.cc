#include "experiments/resnet101_accuracy/published.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "experiments/resnet101_accuracy/settings.h"

namespace gpipe::experiments {
namespace {

TEST(PublishedAccuracy, HasARowForEveryExperiment) {
  const PublishedTable table = published_accuracy();
  EXPECT_EQ(table.rows.size(), 9u);
  for (const Experiment& experiment : published_experiments()) {
    const auto row = std::find_if(table.rows.begin(), table.rows.end(), [&](const PublishedRow& r) {
      return r.experiment == experiment.name;
    });
    ASSERT_NE(row, table.rows.end()) << experiment.name;
    EXPECT_EQ(row->no_counterpart, "");
  }
}

TEST(PublishedAccuracy, MakesAReport) {
  Outcome outcome;
  outcome.origin = Origin::kMeasured;
  outcome.figures = {{"top1_error_percent", 12.25}, {"throughput", 500}};
  const Json json = Json::parse(Report(published_accuracy(), {{"pipeline-1k", outcome}}).to_json());
  const Json& row = json["rows"][7];
  EXPECT_EQ(row["experiment"], "pipeline-1k");
  EXPECT_EQ(row["figures"]["top1_error_percent"]["published"]["torchgpipe"]["value"], 22.24);
  EXPECT_EQ(row["figures"]["throughput"]["published"]["torchgpipe"], 294.739);
  EXPECT_EQ(json["rows"][0]["origin"], "published");
  EXPECT_EQ(json["rows"][0]["figures"]["top1_error_percent"]["published_text"],
            Json({{"Goyal et al.", "22.08±0.06"}}));
  EXPECT_EQ(json["rows"][5]["origin"], "published");
}

}  // namespace
}  // namespace gpipe::experiments
