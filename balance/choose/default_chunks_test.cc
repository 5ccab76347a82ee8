#include "balance/choose/default_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;

TEST(DefaultChunks, ArePowersOfTwoAndTheRows) {
  nn::Sequential model(nn::Linear(1, 1));
  EXPECT_THAT(default_chunks(*model, 1), ElementsAre(1));
  EXPECT_THAT(default_chunks(*model, 8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(default_chunks(*model, 11), ElementsAre(1, 2, 4, 8, 11));
}

TEST(DefaultChunks, LeaveABatchNormMoreThanOneRow) {
  nn::Sequential model(nn::Linear(1, 1), nn::BatchNorm2d(1));
  EXPECT_THAT(default_chunks(*model, 8), ElementsAre(1, 2, 4));
  EXPECT_THAT(default_chunks(*model, 9), ElementsAre(1, 2, 4))
      << "with 8 chunks the last micro-batch would have one row";
  EXPECT_THAT(default_chunks(*model, 2), ElementsAre(1));
  EXPECT_THAT(default_chunks(*model, 1), ElementsAre(1)) << "there is only one row";
  model->eval();
  EXPECT_THAT(default_chunks(*model, 8), ElementsAre(1, 2, 4, 8))
      << "in eval mode batch norms take no statistics, so one row is enough";
}

}  // namespace
}  // namespace gpipe::balance
