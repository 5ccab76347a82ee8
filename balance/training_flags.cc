#include "balance/training_flags.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

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

Checkpoint parse_checkpoint(const std::string& text) {
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    if (text == to_text(mode)) return mode;
  }
  throw std::invalid_argument("--checkpoint=" + text + ": give always, except_last or never");
}

ScheduleGenerator parse_schedule(const std::string& text) {
  if (text == "gpipe") return Schedule::gpipe;
  if (text == "1f1b") return Schedule::one_f_one_b;
  throw std::invalid_argument("--schedule=" + text + ": give gpipe or 1f1b");
}

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
  throw std::invalid_argument("--optimizer=" + text +
                              ": give none, sgd, momentum, rmsprop, adagrad, adam or adamw");
}

}  // namespace gpipe::balance
