#include <torch/torch.h>

#include <iostream>

#include "gpipe/gpipe.h"

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 2));
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 2}).chunks(4));  // 2 stages, 4 micro-batches
  torch::optim::SGD optimizer(pipe->parameters(), 0.5);
  auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return torch::nn::functional::cross_entropy(outputs.at(0), targets.at(0));
  };

  torch::Tensor input = torch::randn({64, 8});
  torch::Tensor target = (input.sum(1) > 0).to(torch::kLong);
  double loss = 0;
  for (int i = 0; i < 100; ++i) {
    optimizer.zero_grad();
    loss = pipe->step({input}, {target}, loss_fn).loss;  // forward, loss and backward, pipelined
    optimizer.step();
  }
  std::cout << "loss " << loss << "\n";
  return loss < 0.1 ? 0 : 1;
}
