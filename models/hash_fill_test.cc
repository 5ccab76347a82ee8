#include "models/hash_fill.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <stdexcept>

namespace gpipe::models {
namespace {

// The reference numbers' program and experiments/rivals/sides/common.py have the same function.
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

TEST(HashFillTest, OverwritesLargeOnesToTheLastElement) {
  const at::Tensor large = at::zeros({3, 20011}, at::kFloat);
  overwrite(large, [](int64_t i) { return i + 1; });
  EXPECT_TRUE(large.equal(at::arange(1, 60034, at::kFloat).view({3, 20011})));
  const at::Tensor empty = at::zeros({0, 3});
  overwrite(empty, [](int64_t) -> double { throw std::logic_error("it has no element"); });
  const at::Tensor scalar = at::zeros({});
  overwrite(scalar, [](int64_t i) { return i + 7; });
  EXPECT_EQ(scalar.item<float>(), 7);
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

}  // namespace
}  // namespace gpipe::models
