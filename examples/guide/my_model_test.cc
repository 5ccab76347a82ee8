// The test that chapter 13 shows: a user's own model on the CPU and on the fake accelerator.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"

namespace {

namespace nn = torch::nn;

nn::Sequential make_model() {
  torch::manual_seed(0);
  return nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(),
                        nn::Linear(8, 1));
}

// [my_model_test]
// #include <gtest/gtest.h>, "gpipe/testing/device.h"
using MyModel = gpipe::testing::DeviceTest;

TEST_F(MyModel, TrainsAsOnTheCpu) {
  at::set_num_threads(1);  // as the stages have: sums over several threads have other last bits
  torch::Tensor input = torch::randn({8, 8});
  nn::Sequential plain = make_model();  // with a seed
  torch::mse_loss(plain->forward(input), torch::zeros({8, 1})).backward();

  gpipe::GPipe pipe(make_model(),
                    gpipe::GPipeOptions({2, 2, 1}).devices(gpipe::testing::devices(3)).chunks(2));
  pipe->step({input.to(gpipe::testing::device(0))},
             {torch::zeros({8, 1}).to(gpipe::testing::device(2))}, nn::MSELoss());
  torch::Tensor gradient = gpipe::testing::on_host(pipe->parameters()[0].grad());
  EXPECT_TRUE(torch::allclose(gradient, plain->parameters()[0].grad()));
}
// [/my_model_test]

}  // namespace
