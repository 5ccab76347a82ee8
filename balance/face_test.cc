// What a user needs of this package comes with one target, //balance, and one header.
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "balance/balance.h"

namespace gpipe::balance {
namespace {

TEST(Balance, OneTargetBringsItAll) {
  const torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  EXPECT_THAT(balance_by_time(2, model, at::rand({2, 4}), TimeOptions().timeout(0.01)),
              ::testing::ElementsAre(1, 1));
  EXPECT_THAT(partition({1, 1, 2}, 2), ::testing::ElementsAre(2, 1));
}

}  // namespace
}  // namespace gpipe::balance
