#include "experiments/rivals/fill.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;

// sides/common.py must give the same; every contest compares the losses that follow.
TEST(FillTest, HasTheValuesThatTheRivalsHave) {
  EXPECT_EQ(fill_value(0, 0), -1.0);
  EXPECT_EQ(fill_value(0, 1000), -0.1999160833656788);
  EXPECT_EQ(fill_value(7, 1), 0.9447353640571237);
  EXPECT_EQ(fill_value(1000625, 1000), 0.9881136734038591);
}

TEST(FillTest, FillsEachParameterByItsPlaceAndKind) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  fill_parameters(*model);
  const auto parameters = model->named_parameters();
  EXPECT_FLOAT_EQ(parameters["0.weight"][0][1].item<float>(), std::sqrt(1.5) * fill_value(0, 1));
  EXPECT_FLOAT_EQ(parameters["0.bias"][2].item<float>(), 0.2 * fill_value(1, 2));
  EXPECT_FLOAT_EQ(parameters["1.weight"][1].item<float>(), 1 + 0.2 * fill_value(2, 1));
  EXPECT_FLOAT_EQ(parameters["1.bias"][0].item<float>(), 0.2 * fill_value(3, 0));
}

TEST(FillTest, MakesWhatEachNetworkTakes) {
  const auto unet = models::model_by_name("unet:1,2", 64);
  const at::Tensor image = filled_input(unet, 2);
  EXPECT_THAT(image.sizes().vec(), ElementsAre(2, 3, 64, 64));
  EXPECT_GE(image.min().item<float>(), 0);
  EXPECT_GT(image.max().item<float>(), 0.99);
  EXPECT_LE(image.max().item<float>(), 1);
  EXPECT_THAT(filled_target(unet, 2).sizes().vec(), ElementsAre(2, 1, 64, 64));
  const at::Tensor labels = filled_target(models::model_by_name("resnet:1,1"), 3);
  EXPECT_EQ(labels.scalar_type(), at::kLong);
  EXPECT_EQ(labels[2].item<int64_t>(), 14);
}

}  // namespace
}  // namespace gpipe::experiments
