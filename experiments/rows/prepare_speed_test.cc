#include "experiments/rows/prepare_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

SpeedExperiment tiny() {
  SpeedExperiment experiment;
  experiment.name = "tiny_speed";
  experiment.edition = "2019-06";
  experiment.title = "Tiny";
  experiment.variants = {{"baseline", 4, 1, {}, {"100"}}, {"pipeline-2", 4, 2, {1, 1}}};
  experiment.samples = 8;
  experiment.remarks = {"Published: somewhere."};
  experiment.network = [](Scale) -> Network {
    models::NamedModel model;
    model.row = {6};
    model.make = [] {
      return torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    };
    return {"Tiny", model};
  };
  experiment.smoke = experiment.small = {/*samples=*/8, 1, /*micro_batch=*/2, /*most_chunks=*/2};
  return experiment;
}

void set(const char* flag, const std::string& value) {
  std::string error;
  ASSERT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << error;
}

class PrepareSpeedTest : public ::testing::Test {
 protected:
  const absl::FlagSaver saver_;
};

TEST_F(PrepareSpeedTest, EveryVariantIsMeasuredAndSimulated) {
  const ExperimentRun prepared = prepare_speed(tiny());
  EXPECT_EQ(prepared.name, "tiny_speed");
  EXPECT_EQ(prepared.edition, "2019-06");
  std::vector<std::string> rows;
  for (const Variant& variant : prepared.variants) {
    EXPECT_EQ(variant.refusal, "");
    rows.push_back(variant.name + " " + to_text(variant.way));
  }
  EXPECT_THAT(rows, ElementsAre("baseline measured", "baseline simulated", "pipeline-2 measured",
                                "pipeline-2 simulated"));
  EXPECT_THAT(prepared.remarks, ElementsAre("Published: somewhere.", HasSubstr("--scale=smoke"),
                                            HasSubstr("Simulated: ")));
}

TEST_F(PrepareSpeedTest, OnlyTheWaysThatAreAsked) {
  set("ways", "simulated");
  const ExperimentRun prepared = prepare_speed(tiny());
  ASSERT_EQ(prepared.variants.size(), 2);
  EXPECT_EQ(prepared.variants[0].way, Origin::kSimulated);
  EXPECT_EQ(prepared.remarks.size(), 2);
  set("chunks", "2");
  EXPECT_THAT([] { prepare_speed(tiny()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("is for measured rows")));
}

TEST_F(PrepareSpeedTest, ABalanceOfOnesOwnIsMeasuredOnly) {
  set("balance", "1,1");
  const ExperimentRun prepared = prepare_speed(tiny());
  ASSERT_EQ(prepared.variants.size(), 2);
  EXPECT_EQ(prepared.variants[1].way, Origin::kMeasured);
  set("ways", "measured,simulated");
  EXPECT_EQ(prepare_speed(tiny()).variants.size(), 4);
  set("ways", "");
  set("balance", "2,2");
  EXPECT_THAT([] { prepare_speed(tiny()); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("sums up to 4")));
}

TEST_F(PrepareSpeedTest, LinksThatCannotBeAreRefused) {
  set("link_latency", "-1");
  EXPECT_THAT(
      [] { prepare_speed(tiny()); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("--link_latency=-1: give a number from 0")));
}

}  // namespace
}  // namespace gpipe::experiments
