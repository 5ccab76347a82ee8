#include "balance/commands/testing/own_network.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(int64_t, width, 16, "Width of the layers.");
ABSL_FLAG(std::string, mistake, "", "What is wrong with the model.");

namespace {

// A network that is not a list of layers.
struct WholeImpl : torch::nn::Module {
  WholeImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 10));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first = nullptr, second = nullptr;
};
TORCH_MODULE(Whole);

torch::nn::Sequential layers(int64_t width) {
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, width), torch::nn::Linear(width, 10));
}

}  // namespace

gpipe::balance::Training make_model() {
  const int64_t width = absl::GetFlag(FLAGS_width);
  const std::string mistake = absl::GetFlag(FLAGS_mistake);
  if (width < 1) {
    throw std::invalid_argument(absl::StrCat("--width=", width, ": give a number from 1 on"));
  }
  gpipe::balance::Training training;
  training.make = [width] { return layers(width); };
  training.inputs = {at::rand({8, 4})};
  training.targets = {at::randint(10, {8}, at::kLong)};
  training.loss = torch::nn::CrossEntropyLoss();
  training.name = absl::StrCat("perceptron-", width);
  if (mistake == "no_model") training.make = nullptr;
  if (mistake == "null_model") training.make = [] { return torch::nn::Sequential(nullptr); };
  if (mistake == "no_layers") training.make = [] { return torch::nn::Sequential(); };
  if (mistake == "no_sequential") training.make = [] { return torch::nn::Sequential(Whole()); };
  if (mistake == "no_inputs") training.inputs.clear();
  if (mistake == "no_rows") training.inputs = {at::rand({0, 4})};
  if (mistake == "scalar") training.inputs = {at::rand({})};
  if (mistake == "wrong_shape") training.inputs = {at::rand({8, 5})};
  if (mistake == "wrong_targets") training.targets = {at::randint(10, {6}, at::kLong)};
  if (mistake == "meta_inputs") training.inputs = {at::empty({8, 4}, at::kMeta)};
  if (mistake == "no_loss") training.loss = nullptr;
  if (mistake == "no_name") training.name.clear();
  return training;
}
