#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <sstream>
#include <stdexcept>

#include "absl/flags/reflection.h"
#include "experiments/rows/prepare_speed.h"

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SpeedExperiment tiny() {
  SpeedExperiment experiment;
  experiment.name = "tiny_speed";
  experiment.variants = {{"baseline", 8},
                         {"pipeline-2", 16, 4, {2, 2}},
                         {"n2m1", 8, 1, {1, 3}, {}, Checkpoint::kAlways}};
  experiment.samples = 40;
  experiment.epochs = 2;
  experiment.network = [](Scale scale) -> Network {
    models::NamedModel model;
    model.name = "tiny:4";
    model.row = {6};
    model.classes = 6;
    model.make = [scale] {
      using torch::nn::Linear;
      torch::nn::Sequential layers(Linear(6, 6), Linear(6, 6), Linear(6, 6), Linear(6, 6));
      if (scale == Scale::kSmoke) layers->push_back(Linear(6, 6));
      return layers;
    };
    return {"Tiny", model};
  };
  experiment.smoke = {/*samples=*/10, /*epochs=*/3, /*micro_batch=*/2, /*most_chunks=*/2};
  experiment.small = {/*samples=*/12, /*epochs=*/3, /*micro_batch=*/1, /*most_chunks=*/3};
  experiment.assumed = "settings assumed";
  return experiment;
}

class MeasuredSpeedTest : public ::testing::Test {
 protected:
  Outcome run(const std::string& variant) {
    Outcome outcome;
    RunContext context;
    context.out = &out_;
    measured_speed(experiment_, flags_, variant)(outcome, context);
    return outcome;
  }
  std::string refusal(const std::string& variant) {
    try {
      measured_speed(experiment_, flags_, variant);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  const absl::FlagSaver saver_;
  SpeedExperiment experiment_ = tiny();
  CommonFlags flags_ = read_common_flags();
  std::ostringstream out_;
};

TEST_F(MeasuredSpeedTest, ASmallerScaleHasSmallerMiniBatchesAndItsBalanceInProportion) {
  const Outcome outcome = run("pipeline-2");
  EXPECT_EQ(outcome.origin, Origin::kMeasured);
  EXPECT_GT(outcome.figures.at("throughput"), 0);
  EXPECT_EQ(outcome.epochs.size(), 3);
  EXPECT_EQ(outcome.settings["batch_size"], 4);
  EXPECT_EQ(outcome.settings["chunks"], 2);
  EXPECT_EQ(outcome.settings["samples"], 10);
  EXPECT_EQ(outcome.settings["balance"].size(), 2);
  EXPECT_THAT(outcome.note, AllOf(HasSubstr("Tiny, 4 x 6, chunks 2, balance ["),
                                  HasSubstr("3 epochs of 10 samples, 2 x cpu")));
}

TEST_F(MeasuredSpeedTest, FullIsAsPublished) {
  flags_.scale = Scale::kFull;
  const Outcome outcome = run("pipeline-2");
  EXPECT_EQ(outcome.settings["batch_size"], 16);
  EXPECT_EQ(outcome.settings["chunks"], 4);
  EXPECT_EQ(outcome.settings["balance"], Json({2, 2}));
  EXPECT_EQ(outcome.settings["samples"], 40);
  EXPECT_EQ(outcome.epochs.size(), 2);
  EXPECT_THAT(outcome.note, HasSubstr("; settings assumed"));
  EXPECT_FALSE(run("baseline").settings.contains("balance"));
}

TEST_F(MeasuredSpeedTest, TheCheckpointModeIsThePublishedOneUnlessGiven) {
  EXPECT_EQ(run("n2m1").settings["checkpoint"], "always");
  EXPECT_EQ(run("pipeline-2").settings["checkpoint"], "except_last");
  flags_.checkpoint = Checkpoint::kNever;
  EXPECT_EQ(run("n2m1").settings["checkpoint"], "never");
}

TEST_F(MeasuredSpeedTest, GraphsAreForPipelinesThatAskForThem) {
  EXPECT_FALSE(run("pipeline-2").settings.contains("graphs"));
  std::string error;
  ASSERT_TRUE(absl::FindCommandLineFlag("graphs")->ParseFrom("true", &error)) << error;
  const Outcome outcome = run("pipeline-2");
  EXPECT_EQ(outcome.settings["graphs"], true);
  EXPECT_THAT(outcome.note, HasSubstr(", graphs (the CPU has none), 3 epochs"));
  EXPECT_GT(outcome.figures.at("throughput"), 0);
  EXPECT_FALSE(run("baseline").settings.contains("graphs"));
}

TEST_F(MeasuredSpeedTest, MistakesAreFoundBeforeItRuns) {
  flags_.balance = {1, 1};
  EXPECT_THAT(refusal("pipeline-2"), HasSubstr("sums up to 2"));
  flags_.balance.clear();
  flags_.chunks = 9;
  EXPECT_THAT(refusal("pipeline-2"), HasSubstr("cannot be cut into more micro-batches"));
  flags_.chunks = 0;
  absl::CommandLineFlag* samples = absl::FindCommandLineFlag("samples");
  std::string error;
  ASSERT_TRUE(samples->ParseFrom("-1", &error));
  EXPECT_THAT(refusal("baseline"), HasSubstr("--samples=-1"));
}

}  // namespace
}  // namespace gpipe::experiments
