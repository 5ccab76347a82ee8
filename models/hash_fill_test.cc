#include "models/hash_fill.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "meta/meta_scope.h"

namespace gpipe::models {
namespace {

// The program that made the reference numbers and experiments/rivals/sides/common.py have the same
// function, so its values must not change.
TEST(HashFillTest, HashIsTheOneOfTheOtherPrograms) {
  EXPECT_EQ(hash_value(0, 0), -1.0);
  EXPECT_EQ(hash_value(0, 1000), -0.1999160833656788);
  EXPECT_EQ(hash_value(7, 1), 0.9447353640571237);
  EXPECT_EQ(hash_value(313, 2), -0.35871984669938684);
  EXPECT_EQ(hash_value(1000625, 1000), 0.9881136734038591);
}

TEST(HashFillTest, OverwritesRowByRowWhateverTheStridesAndTheType) {
  const at::Tensor transposed = at::zeros({3, 2}, at::kLong).t();
  overwrite(transposed, [](int64_t i) { return i; });
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_EQ(transposed[row][column].item<int64_t>(), 3 * row + column);
    }
  }
}

TEST(HashFillTest, FillsEachParameterByItsPlaceAndKind) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  hash_fill_parameters(*model);
  const auto parameters = model->named_parameters();
  EXPECT_FLOAT_EQ(parameters["0.weight"][0][1].item<float>(), std::sqrt(1.5) * hash_value(0, 1));
  EXPECT_FLOAT_EQ(parameters["0.bias"][2].item<float>(), 0.2 * hash_value(1, 2));
  EXPECT_FLOAT_EQ(parameters["1.weight"][1].item<float>(), 1 + 0.2 * hash_value(2, 1));
  EXPECT_FLOAT_EQ(parameters["1.bias"][0].item<float>(), 0.2 * hash_value(3, 0));
}

TEST(HashFillTest, LayersOfOtherProcessesCountAndStayAsTheyAre) {
  torch::nn::Linear elsewhere = [] {
    const MetaScope meta;
    return torch::nn::Linear(2, 3);
  }();
  torch::nn::Linear here(3, 1);
  hash_fill_parameters(*torch::nn::Sequential(elsewhere, here));
  EXPECT_TRUE(elsewhere->weight.is_meta());
  EXPECT_FLOAT_EQ(here->bias.item<float>(), 0.2 * hash_value(3, 0));
}

}  // namespace
}  // namespace gpipe::models
