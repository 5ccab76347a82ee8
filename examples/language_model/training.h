// make_optimizer: the optimizer of a language model.
#ifndef LANGUAGE_MODEL_TRAINING_H_
#define LANGUAGE_MODEL_TRAINING_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

#include "examples/common/token_loss.h"

namespace language_model {

using examples::count_tokens;
using examples::LearningRate;
using examples::mean_loss;
using examples::set_learning_rate;

std::unique_ptr<torch::optim::AdamW> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                    double weight_decay);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_TRAINING_H_
