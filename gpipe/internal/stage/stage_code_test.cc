#include "gpipe/internal/stage/stage_code.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>

namespace gpipe::internal {
namespace {

TEST(StageCode, NamesTheCodeThatRanLast) {
  torch::nn::ReLU relu;
  torch::nn::Tanh tanh;
  StageCode code(1, {{torch::nn::AnyModule(relu), "relu", 5, skip::CallPlan(*relu)},
                     {torch::nn::AnyModule(tanh), "tanh", 6, skip::CallPlan(*tanh)}});
  EXPECT_EQ(code.current(), "stage 1");
  EXPECT_FALSE(code.runs_layer());
  code.enter(1);
  EXPECT_EQ(code.current(), "layer 6 ('tanh')");
  EXPECT_TRUE(code.runs_layer());
  code.enter(code.loss());
  EXPECT_EQ(code.current(), "the loss function");
  EXPECT_FALSE(code.runs_layer());
  code.position() = 0;
  EXPECT_EQ(code.current(), "layer 5 ('relu')");
  code.leave();
  EXPECT_EQ(code.current(), "stage 1");
}

}  // namespace
}  // namespace gpipe::internal
