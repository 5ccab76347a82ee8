#include "examples/guide/my_training.h"

#include <torch/torch.h>

namespace {

namespace nn = torch::nn;

nn::Sequential my_model() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)), nn::ReLU(),
                        nn::Flatten(), nn::Linear(16 * 32 * 32, 10));
}

}  // namespace

// [make_model]
// #include "balance/commands/balance_main.h"
gpipe::balance::Training make_model() {
  gpipe::balance::Training training;
  training.make = my_model;                          // gives a torch::nn::Sequential
  training.inputs = {torch::rand({32, 3, 32, 32})};  // a mini-batch, as for `step`
  training.targets = {torch::randint(10, {32}, torch::kLong)};
  training.loss = torch::nn::CrossEntropyLoss();
  return training;
}
// [/make_model]
