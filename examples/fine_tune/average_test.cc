#include "examples/fine_tune/average.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <vector>

#include "gpipe/testing/bitwise.h"

namespace fine_tune {
namespace {

using gpipe::testing::EqualsBitwise;

gpipe::GPipe pipeline() {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  model->parameters()[0].set_requires_grad(false);
  add_averages(*model);
  return gpipe::GPipe(model, {1, 1});
}

TEST(Average, IsOfWhatTrains) {
  gpipe::GPipe pipe = pipeline();
  ASSERT_EQ(pipe->buffers().size(), 3);
  EXPECT_EQ(pipe->named_buffers().find("0.weight_average"), nullptr);
  const at::Tensor weight = pipe->named_parameters()["1.weight"],
                   average = pipe->named_buffers()["1.weight_average"];
  EXPECT_THAT(average, EqualsBitwise(weight.detach()));
  const at::Tensor first = weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    weight.add_(8);
  }
  update_averages(pipe, 0.75);
  EXPECT_TRUE(average.allclose(first + 2));

  const at::Tensor averaged = average.clone(), trained = weight.detach().clone(),
                   frozen = pipe->named_parameters()["0.weight"].detach().clone();
  {
    const WithAverages averages(pipe);
    EXPECT_THAT(weight.detach(), EqualsBitwise(averaged));
    EXPECT_THAT(pipe->named_parameters()["0.weight"].detach(), EqualsBitwise(frozen));
  }
  EXPECT_THAT(weight.detach(), EqualsBitwise(trained));
  EXPECT_THAT(average, EqualsBitwise(averaged));
}

}  // namespace
}  // namespace fine_tune
