#include "models/testing/golden.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>

#include "gpipe/testing/bitwise.h"
#include "models/hash_fill.h"

namespace gpipe::models::testing {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(GoldenTest, FillsEveryTensorByItsKind) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  fill("hash", *model);
  const auto parameters = model->named_parameters();
  EXPECT_FLOAT_EQ(parameters["0.weight"][0][1].item<float>(), hash_value(0, 1) * std::sqrt(1.5));
  EXPECT_FLOAT_EQ(parameters["0.bias"][2].item<float>(), 0.2 * hash_value(1, 2));
  EXPECT_FLOAT_EQ(parameters["1.weight"][1].item<float>(), 1 + 0.2 * hash_value(2, 1));
  const auto buffers = model->named_buffers();
  EXPECT_FLOAT_EQ(buffers["1.running_mean"][1].item<float>(), 0.1 * hash_value(1000000, 1));
  EXPECT_FLOAT_EQ(buffers["1.running_var"][1].item<float>(), 1 + 0.5 * hash_value(1000001, 1));
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<int64_t>(), 0);

  fill("sin", *model);
  EXPECT_FLOAT_EQ(model->named_parameters()["0.bias"][2].item<float>(),
                  0.05 * std::sin(0.37 * 2 + 1));
  EXPECT_EQ(model->named_buffers()["1.running_var"][0].item<float>(), 1);
  EXPECT_THROW(fill("other", *model), c10::ValueError);
}

TEST(GoldenTest, RecordsAnOutput) {
  const Record record = testing::record(at::arange(100, at::kDouble) - 1);
  EXPECT_THAT(record.shape, ElementsAre(100));
  EXPECT_EQ(record.sum, 4850);
  EXPECT_EQ(record.abs_sum, 4852);
  EXPECT_EQ(record.max_abs, 98);
  EXPECT_THAT(record.first, ElementsAre(-1, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(record.last, ElementsAre(95, 96, 97, 98));
  double weighted = 0;
  for (int j = 0; j < 100; ++j) weighted += (j - 1) * (j % 97 + 1) / 97.0;
  EXPECT_DOUBLE_EQ(record.weighted_sum, weighted);
}

TEST(GoldenTest, DifferencesAreSeenAndSmallOnesAllowed) {
  const at::Tensor output = golden_input({4, 10});
  const Record golden = record(output);
  EXPECT_EQ(difference(record(output), golden, 0), "");
  EXPECT_EQ(difference(record(output * (1 + 1e-12)), golden, 1e-10), "");
  EXPECT_THAT(difference(record(output * (1 + 1e-8)), golden, 1e-10), HasSubstr("abs_sum"));
  EXPECT_THAT(difference(record(output.flip(0)), golden, 1e-10), HasSubstr("weighted_sum"));
  EXPECT_THAT(difference(record(output.view({10, 4})), golden, 1e-10), HasSubstr("shape"));
  EXPECT_THAT(difference(std::numeric_limits<double>::quiet_NaN(), 1.0, 1e-10), HasSubstr("value"));
}

TEST(GoldenTest, GradientsThatAreZeroByMathematicsMayBeNoise) {
  GradientRecord golden;
  golden.abs_sums = {1, 0};
  GradientRecord actual = golden;
  actual.abs_sums[1] = 1e-12;
  EXPECT_EQ(difference(actual, golden, 1e-10), "");
  actual.abs_sums[1] = 1e-8;
  EXPECT_THAT(difference(actual, golden, 1e-10), HasSubstr("abs_sums[1]"));
  actual.abs_sums = {1 + 1e-12 + 1e-8, 0};
  EXPECT_THAT(difference(actual, golden, 1e-10), HasSubstr("abs_sums[0]"));
}

TEST(GoldenTest, LossesAndTargets) {
  EXPECT_THAT(golden_target("ce", {3, 5}), EqualsBitwise(at::tensor({1, 4, 2}, at::kLong)));
  EXPECT_DOUBLE_EQ(golden_target("bce", {2, 3})[1][2].item<double>(), 0.5 + 0.5 * std::sin(0.1));
  EXPECT_NEAR(golden_loss("bce", at::zeros({2, 3}, at::kDouble)).item<double>(), std::log(2.0),
              1e-12);
  EXPECT_THROW(golden_target("mse", {1}), c10::ValueError);
}

TEST(GoldenTest, HasAllCases) {
  EXPECT_THAT(golden_cases(), SizeIs(8));
  EXPECT_THAT(golden_pipeline_runs(), SizeIs(6));
  EXPECT_THAT(golden_case("resnet_1111_nc10_64x64").input_shape, ElementsAre(4, 3, 64, 64));
  EXPECT_THROW(golden_case("other"), std::out_of_range);
}

}  // namespace
}  // namespace gpipe::models::testing
