// Training: a model and what it is trained on, for fit() (balance/choose/fit.h) and for commands
// with a model of one's own (balance/commands/balance_main.h and others).
#ifndef BALANCE_CHOOSE_TRAINING_H_
#define BALANCE_CHOOSE_TRAINING_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/loss_fn.h"

namespace gpipe::balance {

// A value type.
//
// Example:
//   Training make_model() {
//     Training training;
//     training.make = my_model;                          // gives a torch::nn::Sequential
//     training.inputs = {torch::rand({32, 3, 64, 64})};  // a mini-batch
//     training.targets = {torch::randint(10, {32}, torch::kLong)};
//     training.loss = torch::nn::CrossEntropyLoss();
//     return training;
//   }
struct Training {
  // Makes the model; called while a MetaScope lives (meta/meta_scope.h), so that it takes no
  // memory. The commands that measure (balance/commands) call it without one, too.
  std::function<torch::nn::Sequential()> make;
  // The mini-batch, all but the shared inputs with the same rows. For memory and counted operations
  // only shapes and types matter, so tensors on meta do.
  Tensors inputs;
  Tensors targets;
  LossFn loss;  // as in GPipeImpl::step
  // For messages, titles and saved profiles. Default: none.
  std::string name = {};
  // As in GPipeOptions. Default: none, all micro-batches get rows of their own.
  std::vector<int64_t> shared_inputs = {};
};

// Of a program with a model of its own.
using MakeTraining = std::function<Training()>;

// The loss of those that give none: a LossFn.
at::Tensor sum_of_first_output(const Tensors& outputs, const Tensors& targets);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_TRAINING_H_
