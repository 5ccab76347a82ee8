// Trains a small network, alone or over processes, and prints its losses and a hash of its
// parameters, which are the same for any number of processes:
//
//   cmake -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
//   build/train
//   PREFIX/bin/launch --processes=2 -- build/train
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <iostream>

#include "gpipe/gpipe.h"
#include "gpipe/world.h"

int main() {
  const gpipe::World world = gpipe::World::from_environment();
  torch::manual_seed(0);  // the same model and data in all processes
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(32, 2));
  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = (input.sum(1) > 0).to(torch::kLong);
  const auto loss_fn = [](const gpipe::Tensors& outputs, const gpipe::Tensors& targets) {
    return torch::nn::functional::cross_entropy(outputs.at(0), targets.at(0));
  };

  // The pipeline has two stages. In two processes each has one.
  gpipe::GPipe pipe(model,
                    gpipe::GPipeOptions({2, 2}).chunks(4).cpu_threads_per_stage(1).world(world));
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.05);
  double loss = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    loss = pipe->step({input}, {target}, loss_fn).loss;
    optimizer.step();
  }
  const std::string hash = pipe->parameter_hash();  // a call of all processes
  if (world.rank() == 0) {
    std::cout << "processes " << world.size() << "\nloss " << loss << "\nhash " << hash << "\n";
  }
  return loss < 0.1 ? 0 : 1;
}
