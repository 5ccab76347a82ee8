#include "experiments/rows/simulated_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "balance/costs/profile_file.h"
#include "experiments/frame/variants.h"
#include "experiments/rows/simulation_flags.h"

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Four layers of 64 x 64, so that the reference's time is the sum of the layers'.
SpeedExperiment tiny() {
  SpeedExperiment experiment;
  experiment.name = "tiny_speed";
  experiment.variants = {{"baseline", 8, 1, {}, {"123"}}, {"pipeline-2", 16, 4, {2, 2}}};
  experiment.samples = 40;
  experiment.network = [](Scale) -> Network {
    models::NamedModel model;
    model.name = "tiny:4";
    model.row = {64};
    model.make = [] {
      using torch::nn::Linear;
      return torch::nn::Sequential(Linear(64, 64), Linear(64, 64), Linear(64, 64), Linear(64, 64));
    };
    return {"Tiny", model};
  };
  return experiment;
}

SimulationSettings free_links() {
  SimulationSettings settings;
  static_cast<balance::Machine&>(settings.machine) = {};
  return settings;
}

Outcome run(const SimulatedRows& rows, const std::string& variant) {
  Outcome outcome;
  rows.row(variant)(outcome, {});
  return outcome;
}

TEST(SimulatedRows, WithoutAProfileTheReferenceHasItsPublishedThroughput) {
  const SimulatedRows rows(tiny(), free_links());
  const Outcome baseline = run(rows, "baseline");
  EXPECT_EQ(baseline.origin, Origin::kSimulated);
  EXPECT_NEAR(baseline.figures.at("throughput"), 123, 1e-6);
  EXPECT_THAT(baseline.note, AllOf(HasSubstr("Tiny, 8 x 64; times from FLOPs and bytes, x "),
                                   HasSubstr("which gives this row the throughput published")));
  EXPECT_EQ(baseline.settings["costs"], "nominal");
  const Outcome pipeline = run(rows, "pipeline-2");
  balance::NominalDevice p40;
  p40.flops_per_second = 11.76e12;
  p40.bytes_per_second = 346e9;
  const models::NamedModel model = tiny().network(Scale::kFull).model;
  const LayerCosts costs =
      scaled(nominal_costs(model.make, model.row, p40), baseline.settings["factor"]);
  EXPECT_DOUBLE_EQ(
      pipeline.figures.at("throughput"),
      simulate_speed(find_variant(tiny().variants, "pipeline-2"), 40, costs, free_links().machine)
          .throughput);
  EXPECT_THAT(pipeline.note, AllOf(HasSubstr("chunks 4, balance [2, 2], checkpoint except_last"),
                                   HasSubstr("gpipe; times from FLOPs and bytes, x "),
                                   Not(HasSubstr("gives this row"))));
  EXPECT_THAT(rows.remark(),
              AllOf(HasSubstr("with which baseline has the 123 samples/s published."),
                    HasSubstr("Links: no limit, 0 us; 0 us for each action.")));
}

// For equal layers only the sum of the times counts. The reference nearly fixes this sum, because
// all but the bytes of the weights is in proportion to the rows. So a wrong speed hardly moves the
// throughput. The overhead of actions is in the pipeline alone, so a wrong overhead moves it.
TEST(SimulatedRows, SayHowFarTheyMoveWhereAConstantIsOff) {
  const auto moves = [](const SimulationSettings& settings) {
    const Outcome outcome = run(SimulatedRows(tiny(), settings), "pipeline-2");
    EXPECT_THAT(outcome.note, HasSubstr("where one constant is off by 30 %"));
    return std::pair<double, double>(outcome.settings["moves"][0], outcome.settings["moves"][1]);
  };
  const auto [least, most] = moves(free_links());
  EXPECT_NEAR(least, 0, 1e-2);
  EXPECT_NEAR(most, 0, 1e-2);
  SimulationSettings slow = free_links();
  slow.machine.overhead = 100;  // so long that nothing else counts
  const auto [slower, faster] = moves(slow);
  EXPECT_NEAR(slower, 1 / 1.3 - 1, 1e-2);
  EXPECT_NEAR(faster, 1 / 0.7 - 1, 1e-2);
  EXPECT_THAT(run(SimulatedRows(tiny(), slow), "baseline").note, Not(HasSubstr("off by")));
}

TEST(SimulatedRows, TheStepsOfAnEpochAreTold) {
  const Outcome outcome = run(SimulatedRows(tiny(), free_links()), "pipeline-2");
  const Json& steps = outcome.settings["steps"];
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[0]["times"], 2);
  EXPECT_EQ(steps[0]["micro_batches"], 4);
  EXPECT_EQ(steps[0]["rows"], 4);
  EXPECT_EQ(steps[1]["rows"], 2);
  const double seconds = 2 * steps[0]["seconds"].get<double>() + steps[1]["seconds"].get<double>();
  EXPECT_DOUBLE_EQ(outcome.figures.at("throughput"), 40 / seconds);
}

TEST(SimulatedRows, WhatIsAssumedIsSaid) {
  SpeedExperiment experiment = tiny();
  experiment.assumed = "settings assumed";
  EXPECT_THAT(run(SimulatedRows(experiment, free_links()), "pipeline-2").note,
              HasSubstr("; settings assumed"));
}

class ProfiledTest : public ::testing::Test {
 protected:
  // A layer takes 1 s forward and 2 s backward for 2 rows.
  ProfiledTest() {
    saved_.model = "tiny:4";
    saved_.profile.device = "GPU of a test";
    saved_.profile.batch_rows = 2;
    saved_.profile.input = 512;
    for (int layer = 0; layer < 4; ++layer) {
      saved_.profile.layers.push_back({std::to_string(layer), 1, 2, 16, 0, 512, 0, 512});
    }
    settings_ = free_links();
    settings_.profile = ::testing::TempDir() + "/simulated_rows_test.json";
  }

  balance::SavedProfile saved_;
  SimulationSettings settings_;
};

TEST_F(ProfiledTest, TimesAreThoseOfTheProfile) {
  balance::save_profile(settings_.profile, saved_);
  const SimulatedRows rows(tiny(), settings_);
  const Outcome outcome = run(rows, "baseline");
  EXPECT_DOUBLE_EQ(outcome.figures.at("throughput"), 2 / 12.0) << "nothing is scaled";
  EXPECT_THAT(outcome.note, AllOf(HasSubstr("times of GPU of a test with a micro-batch of 2"),
                                  Not(HasSubstr("published"))));
  EXPECT_EQ(outcome.settings["costs"], "GPU of a test");
  EXPECT_THAT(rows.remark(), HasSubstr("Layers' times: those of GPU of a test (--profile)."));
}

TEST_F(ProfiledTest, OneOfAnotherNetworkIsRefused) {
  saved_.model = "tiny:5";
  balance::save_profile(settings_.profile, saved_);
  EXPECT_THAT(
      [&] { SimulatedRows(tiny(), settings_); },
      ThrowsMessage<std::invalid_argument>(AllOf(
          HasSubstr("is of tiny:5, but this table's network is tiny:4"),
          HasSubstr("--model=tiny:4 --partitions=1 --chunks=1 --batch=ROWS --save_profile="))));
  saved_.model.clear();
  saved_.profile.layers.pop_back();
  balance::save_profile(settings_.profile, saved_);
  EXPECT_THAT([&] { SimulatedRows(tiny(), settings_); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has 3 layers, but Tiny has 4")));
  settings_.profile = "/no/such/file";
  EXPECT_THROW(SimulatedRows(tiny(), settings_), std::invalid_argument);
}

TEST(SimulatedRows, UnknownVariants) {
  EXPECT_THROW(SimulatedRows(tiny(), free_links()).row("pipeline-3"), std::invalid_argument);
}

TEST(SimulatedRows, RowsOutliveTheObject) {
  const RunVariant row = SimulatedRows(tiny(), free_links()).row("baseline");
  Outcome outcome;
  std::ostringstream out;
  RunContext context;
  context.out = &out;
  row(outcome, context);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("baseline (simulated): Tiny"),
                               HasSubstr("123.000 samples/sec, 0.325 sec/epoch")));
}

}  // namespace
}  // namespace gpipe::experiments
