// mean_loss, count_tokens, LearningRate: the parts of training a language model that are not the
// pipeline.
#ifndef COMMON_TOKEN_LOSS_H_
#define COMMON_TOKEN_LOSS_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace examples {

inline constexpr int64_t kIgnored = -100;  // a target that does not count, as cross_entropy has it

// The mean loss over the tokens that count, from logits [rows, tokens, words] and the next tokens,
// [rows, tokens].
at::Tensor mean_loss(const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& targets);

// How many tokens count: the weight of a micro-batch (StepOptions::weight), with which the loss of
// a step is the mean over the tokens of all its micro-batches.
double count_tokens(const std::vector<at::Tensor>& targets);

// AdamW's two groups of parameters. Matrices have weight decay; weights and biases of norms do not.
// All processes have these two groups, so a group may be empty in some of them.
struct AdamWGroups {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  torch::optim::AdamWOptions defaults;
};
AdamWGroups adamw_groups(const std::vector<at::Tensor>& parameters, double weight_decay);

struct LearningRate {
  double highest = 0;
  int64_t warm_up = 0;  // steps from 0 to the highest
  int64_t steps = 0;    // of the run; its last step has a tenth of the highest rate

  // The rate of step 0, 1, ...: it rises in a straight line, and then falls along half a wave of a
  // cosine (Loshchilov, Hutter, "SGDR", 2017).
  double at(int64_t step) const;
};
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace examples

#endif  // COMMON_TOKEN_LOSS_H_
