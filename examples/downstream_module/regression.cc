#include "regression.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "balance/balance.h"
#include "gpipe/gpipe.h"

double fit_sine(int64_t steps) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  const torch::Tensor input = torch::linspace(-3, 3, 64).unsqueeze(1);
  const torch::Tensor target = input.sin();
  const auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return torch::mse_loss(outputs.at(0), targets.at(0));
  };

  const auto balance = gpipe::balance::balance_by_time(2, model, input.slice(0, 0, 16));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions(balance).chunks(4));
  torch::optim::Adam optimizer(pipe->parameters(), 0.01);
  double loss = 0;
  for (int64_t i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    loss = pipe->step({input}, {target}, loss_fn).loss;
    optimizer.step();
  }
  return loss;
}
