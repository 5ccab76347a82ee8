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

// The steps of training since the last line of output.
struct Part {
  int64_t steps = 0, tokens = 0;
  double losses = 0;
  // The time in this process, which may not have made all of the steps.
  int64_t timed_tokens = 0;
  double seconds = 0;

  void add(double loss, int64_t batch_tokens, double took) {
    ++steps;
    tokens += batch_tokens;
    losses += loss;
    timed_tokens += batch_tokens;
    seconds += took;
  }
  double loss() const { return losses / static_cast<double>(steps); }
  double tokens_a_second() const { return static_cast<double>(timed_tokens) / seconds; }
};

std::unique_ptr<torch::optim::AdamW> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                    double weight_decay);

}  // namespace language_model

#endif  // LANGUAGE_MODEL_TRAINING_H_
