// Training: a model and the mini-batch that it is trained on, for fit() (balance/choose/fit.h) and
// for commands that are linked with a user's model (balance/commands/balance_main.h and others).
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
  // Makes the model. It is called inside a MetaScope (meta/meta_scope.h), so that the model takes
  // no memory. The commands that measure (balance/commands) also call it outside of one.
  std::function<torch::nn::Sequential()> make;
  // The mini-batch. All tensors but the shared inputs have the same number of rows. Memory and
  // counted operations depend on shapes and types only, so tensors on the meta device are enough.
  Tensors inputs;
  Tensors targets;
  LossFn loss;  // as in GPipeImpl::step
  // A name for messages, titles and saved profiles. Default: none.
  std::string name = {};
  // As in GPipeOptions. Default: none; each micro-batch gets its own rows of every input.
  std::vector<int64_t> shared_inputs = {};
};

// Makes the training of a program that has a model of its own.
using MakeTraining = std::function<Training()>;

// A LossFn for trainings without a loss of their own: the sum of the first output.
at::Tensor sum_of_first_output(const Tensors& outputs, const Tensors& targets);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_TRAINING_H_
