#include "balance/memory/optimizer_flag.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "command/wrong_value.h"

namespace gpipe::balance {
namespace {

using torch::optim::Optimizer;

template <typename Kind, typename... Options>
MakeOptimizer maker(Options... options) {
  return [=](std::vector<at::Tensor> parameters) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Kind>(std::move(parameters), options...);
  };
}

}  // namespace

MakeOptimizer parse_optimizer(const std::string& text) {
  if (text == "none") return nullptr;
  if (text == "sgd") return maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  if (text == "momentum") {
    return maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  if (text == "rmsprop") return maker<torch::optim::RMSprop>();
  if (text == "adagrad") return maker<torch::optim::Adagrad>();
  if (text == "adam") return maker<torch::optim::Adam>();
  if (text == "adamw") return maker<torch::optim::AdamW>();
  throw command::wrong_value("optimizer", text,
                             "give none, sgd, momentum, rmsprop, adagrad, adam or adamw");
}

}  // namespace gpipe::balance
