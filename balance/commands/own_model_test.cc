#include "balance/commands/own_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balance/commands/command_model.h"
#include "command/flags.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Training training() {
  Training training;
  training.make = [] { return torch::nn::Sequential(torch::nn::Linear(2, 2)); };
  training.inputs = {at::tensor({1.0, 2.0, 3.0}).unsqueeze(1), at::Tensor(),
                     at::tensor({7, 8, 9}).to(at::kLong)};
  return training;
}

TEST(OwnModel, TheSampleIsTheMiniBatch) {
  const CommandModel model = own_model(training(), std::nullopt);
  EXPECT_EQ(model.rows(), 3);
  EXPECT_EQ(model.batch, std::nullopt);
  const Tensors inputs = model.inputs(3, c10::kCPU);
  ASSERT_EQ(inputs.size(), 3);
  EXPECT_THAT(inputs[0], testing::EqualsBitwise(training().inputs[0]));
  EXPECT_FALSE(inputs[1].defined());
  EXPECT_THAT(inputs[2], testing::EqualsBitwise(training().inputs[2]));
  EXPECT_TRUE(model.targets(3, c10::kCPU).empty());
}

TEST(OwnModel, ANameIsShownOnOneLineAndSavedAsItIs) {
  Training given = training();
  given.name = "my\nmodel\x1b[31m";
  const CommandModel model = own_model(given, std::nullopt);
  EXPECT_EQ(model.title(), "my\\x0amodel\\x1b[31m");
  EXPECT_EQ(model.saved_title(), model.title());
  EXPECT_EQ(model.given, "the program's model " + model.title());
  EXPECT_EQ(model.saved_name, given.name);
}

TEST(OwnModel, RowsAreCutOrRepeated) {
  const CommandModel model = own_model(training(), 5);
  EXPECT_EQ(model.rows(), 5);
  EXPECT_THAT(model.inputs(5, c10::kCPU)[2],
              testing::EqualsBitwise(at::tensor({7, 8, 9, 7, 8}).to(at::kLong)));
  EXPECT_THAT(model.inputs(2, c10::kCPU)[2],
              testing::EqualsBitwise(at::tensor({7, 8}).to(at::kLong)));
}

TEST(OwnModel, ChannelsStayLast) {
  Training given = training();
  given.inputs = {at::rand({3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast)};
  const CommandModel model = own_model(given, std::nullopt);
  for (const int64_t rows : {3, 7}) {
    EXPECT_TRUE(model.inputs(rows, c10::kCPU)[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(OwnModel, OnMetaItHasShapesOnly) {
  Training given = training();
  given.inputs[0].set_requires_grad(true);
  given.targets = {at::rand({3, 4}, at::kDouble)};
  const CommandModel model = own_model(given, std::nullopt);
  const Training plan = model.training();
  EXPECT_TRUE(plan.inputs[0].is_meta());
  EXPECT_TRUE(plan.inputs[0].requires_grad());
  EXPECT_EQ(plan.inputs[2].scalar_type(), at::kLong);
  EXPECT_TRUE(plan.targets[0].is_meta());
  EXPECT_THAT(plan.targets[0].sizes(), ElementsAre(3, 4));
  EXPECT_EQ(model.inputs(int64_t{1} << 40, c10::kMeta)[0].size(0), int64_t{1} << 40);
}

auto refused(Training given) {
  return [given = std::move(given)] { (void)own_model(given, std::nullopt).layers(); };
}

// All micro-batches share the whole mask, so its rows are neither cut nor repeated.
TEST(OwnModel, SharedInputsKeepTheirRows) {
  Training given = training();
  given.inputs[1] = at::rand({2, 2});
  given.shared_inputs = {1};
  const CommandModel model = own_model(given, /*batch=*/5);
  EXPECT_EQ(model.default_batch, 3);
  const Tensors inputs = model.inputs(5, c10::kCPU);
  EXPECT_EQ(inputs[0].size(0), 5);
  EXPECT_THAT(inputs[1], testing::EqualsBitwise(given.inputs[1]));
  EXPECT_FALSE(inputs[1].is_same(given.inputs[1]));
  const Training plan = model.training();
  EXPECT_TRUE(plan.inputs[1].is_meta());
  EXPECT_THAT(plan.inputs[1].sizes(), ElementsAre(2, 2));
  EXPECT_EQ(plan.shared_inputs, given.shared_inputs);
  given.shared_inputs = {3};
  EXPECT_THAT(refused(given), ThrowsMessage<std::invalid_argument>(HasSubstr("names number 3")));
}

TEST(OwnModel, LayersAreCountedWithoutMemory) {
  Training given = training();
  given.make = [] {
    const int64_t wide = int64_t{1} << 30;
    return torch::nn::Sequential(torch::nn::Linear(wide, wide), torch::nn::Linear(wide, wide));
  };
  EXPECT_EQ(own_model(given, std::nullopt).layers(), 2);
}

TEST(OwnModel, WithoutALossItIsTheSum) {
  const CommandModel model = own_model(training(), std::nullopt);
  const Tensors outputs = {at::tensor({1.0, 2.0}), at::tensor({100.0})};
  EXPECT_EQ(model.loss(outputs, {}).item<double>(), 3.0);
}

TEST(OwnModel, MistakesAreNamed) {
  Training none = training();
  none.make = nullptr;
  EXPECT_THAT(refused(none),
              ThrowsMessage<std::invalid_argument>(HasSubstr("set Training::make to a function")));
  Training empty = training();
  empty.make = [] { return torch::nn::Sequential(); };
  EXPECT_THAT(refused(empty), ThrowsMessage<std::invalid_argument>(HasSubstr("has no layers")));
  Training uneven = training();
  uneven.inputs.push_back(at::rand({4}));
  EXPECT_THAT(refused(uneven),
              ThrowsMessage<std::invalid_argument>(HasSubstr("make_model's Training::inputs: ")));
  Training no_rows = training();
  no_rows.inputs = {at::rand({0, 2})};
  EXPECT_THAT(refused(no_rows), ThrowsMessage<std::invalid_argument>(HasSubstr("have no rows")));
  Training targets = training();
  targets.targets = {at::rand({2})};
  EXPECT_THAT(refused(targets), ThrowsMessage<std::invalid_argument>(AllOf(
                                    HasSubstr("inputs have 3 rows"), HasSubstr("targets 2"))));
}

TEST(OwnModel, MetaTensorsCannotBeMeasured) {
  Training given = training();
  given.inputs = {at::empty({3, 2}, at::kMeta)};
  const CommandModel model = own_model(given, std::nullopt);
  EXPECT_TRUE(model.inputs(3, c10::kMeta)[0].is_meta());
  EXPECT_THAT([&] { model.inputs(3, c10::kCPU); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("no values to measure with")));
}

TEST(OwnFace, HelpHasTheProgramsName) {
  const CommandFace face = own_face("/some/where/cut", "  PROGRAM --partitions=2", training, false);
  EXPECT_EQ(face.examples, "  cut --partitions=2");
}

TEST(OwnFace, HasItsOwnBatchAndNoModelToChoose) {
  CommandFace face = own_face("cut", "", training, false);
  EXPECT_EQ(face.find_model("").rows(), 3);
  const auto read = [&](const char* word) {
    const std::vector<const char*> words = {"cut", word};
    std::ostringstream out;
    command::read_flags(2, words.data(), "", "", out, face.flags);
  };
  read("--batch=7");
  EXPECT_EQ(face.find_model("").rows(), 7);
  EXPECT_THAT([&] { read("--batch=0"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("--batch=0: give a number from 1")));
  EXPECT_THAT([&] { read("--model=unet:1,2"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("this program is for one model")));
}

}  // namespace
}  // namespace gpipe::balance
