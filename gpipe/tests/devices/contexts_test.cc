// Tests that a pipeline makes no other devices current than its own: on CUDA a device that is made
// current gets a context of half a gigabyte.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "tied/tied_layer.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::device;

struct TiedImpl : nn::Module, TiedLayer {
  TiedImpl(const torch::Tensor& weight, bool registers) : weight(weight) {
    if (registers) register_parameter("weight", weight);
  }
  std::vector<torch::Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<torch::Tensor>& parameters) override {
    weight = parameters[0];
  }
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(x.matmul(weight)); }
  torch::Tensor weight;
};

// Stages on devices 1 and 2 share a weight, which has a copy on device 2. The caller's thread has
// never used a device, so it is on device 0. Still device 0 must not be made current.
TEST(Contexts, AreMadeOnDevicesOfStagesOnly) {
  const testing::HostWaitsAllowed allowed;  // the thread below copies to devices, and reads a loss
  std::thread([] {
    const torch::Tensor weight = testing::copy_on(device(1), torch::ones({5, 5}) / 5);
    weight.set_requires_grad(true);
    nn::Sequential model(std::make_shared<TiedImpl>(weight, true), nn::Linear(5, 5),
                         std::make_shared<TiedImpl>(weight, false));
    GPipe pipe(model, GPipeOptions({1, 2}).chunks(3).devices({device(1), device(2)}));
    torch::optim::SGD optimizer(pipe->parameters(), 0.1);
    const torch::Tensor rows = torch::ones({6, 5});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      pipe->step({testing::copy_on(device(1), rows)}, {testing::copy_on(device(2), rows)},
                 [](const Tensors& outputs, const Tensors& targets) {
                   return torch::mse_loss(outputs[0], targets[0]);
                 });
      optimizer.step();
    }
  }).join();
  EXPECT_FALSE(testing::fake::was_made_current(0));
  EXPECT_TRUE(testing::fake::was_made_current(1));
  EXPECT_TRUE(testing::fake::was_made_current(2));
  EXPECT_FALSE(testing::fake::was_made_current(3));
}

}  // namespace
}  // namespace gpipe
