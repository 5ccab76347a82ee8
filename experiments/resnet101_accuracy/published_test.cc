#include "experiments/resnet101_accuracy/published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "experiments/resnet101_accuracy/settings.h"

namespace gpipe::experiments {
namespace {

const Row& row(const Report& report, const std::string& experiment) {
  const auto& rows = report.rows();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) {
    return candidate.experiment == experiment;
  });
  if (found == rows.end()) throw std::out_of_range("no row " + experiment);
  return *found;
}

TEST(MakeReport, HasARowForEveryExperiment) {
  const Report report = make_report({}, "not asked for");
  EXPECT_EQ(report.rows().size(), 9u);
  for (const Experiment& experiment : published_experiments()) {
    EXPECT_EQ(row(report, experiment.name).origin, Origin::kNotRun);
    EXPECT_EQ(row(report, experiment.name).note, "not asked for");
  }
  EXPECT_EQ(row(report, "reference-256").origin, Origin::kPublished);
  EXPECT_EQ(row(report, "dataparallel-4k").origin, Origin::kPublished);
}

TEST(MakeReport, MeasuredFiguresStandBesideThePublished) {
  const Report report = make_report({{"dataparallel-256", {true, 11.5, 200, "tiny", {}}},
                                     {"pipeline-1k", {true, 12.25, 500, "tiny", {}}},
                                     {"pipeline-4k", {false, 0, 0, "stopped", {}}}},
                                    "not asked for");
  const Row& pipeline = row(report, "pipeline-1k");
  EXPECT_EQ(pipeline.origin, Origin::kMeasured);
  EXPECT_EQ(pipeline.figures.at("top1_error_percent").ours, 12.25);
  EXPECT_EQ(pipeline.figures.at("top1_error_percent").published.at("published"), "22.24±0.19");
  EXPECT_EQ(pipeline.figures.at("throughput").published.at("published"), "294.739");
  EXPECT_EQ(pipeline.figures.at("speed_up").ours, 2.5);
  EXPECT_EQ(row(report, "pipeline-4k").note, "stopped");
  EXPECT_THAT(report.to_text(), testing::HasSubstr("12.25"));
}

TEST(MakeReport, NoSpeedUpWithoutItsReference) {
  const Report report = make_report({{"pipeline-1k", {true, 12.25, 500, "tiny", {}}}}, "-");
  EXPECT_FALSE(row(report, "pipeline-1k").figures.at("speed_up").ours.has_value());
}

}  // namespace
}  // namespace gpipe::experiments
