// One target, //balance, and one header give users all that they need of this package.
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "balance/balance.h"
#include "balance/costs/profile_file.h"
#include "balance/step/explanation_text.h"

namespace gpipe::balance {
namespace {

TEST(Balance, OneTargetBringsItAll) {
  const torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  EXPECT_THAT(balance_by_time(2, model, at::rand({2, 4}), TimeOptions().timeout(0.01)),
              ::testing::ElementsAre(1, 1));
  EXPECT_THAT(partition({1, 1, 2}, 2), ::testing::ElementsAre(2, 1));
  const Profile measured = profile(model, at::rand({2, 4}), ProfileOptions().timeout(0.01));
  EXPECT_THAT(best_balance(measured, 2), ::testing::ElementsAre(1, 1));
  EXPECT_GT(explain(profile_from_json(to_json({"", measured}), "").profile, {1, 1}).step, 0);
  EXPECT_THAT(to_text(explain(measured, {1, 1})), ::testing::HasSubstr("part."));
}

}  // namespace
}  // namespace gpipe::balance
