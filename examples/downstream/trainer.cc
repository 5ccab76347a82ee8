#include "trainer.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "gpipe/gpipe.h"

std::vector<double> train(const std::vector<int64_t>& balance, int64_t chunks, int64_t steps) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(chunks));
  torch::optim::SGD optimizer(pipe->parameters(), 0.1);

  const torch::Tensor input = torch::randn({32, 4});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true).tanh();
  const auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return torch::mse_loss(outputs.at(0), targets.at(0));
  };

  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    losses.push_back(pipe->step({input}, {target}, loss_fn).loss);
    optimizer.step();
  }
  return losses;
}
