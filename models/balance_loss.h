// balance_loss: a loss that keeps the routers of a mixture of experts from giving all tokens to a
// few of them.
#ifndef MODELS_BALANCE_LOSS_H_
#define MODELS_BALANCE_LOSS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::models {

// The number of experts times the sum, over the experts, of an expert's share of the tokens times
// its mean probability (Fedus et al., "Switch Transformers", 2021), over all blocks together. It is
// `per_token` if all experts get the same number of tokens. A float32 scalar, as Python's
// `transformers` computes it (aux_loss). `router_logits`: (rows, tokens, blocks, experts), the
// second output of a model with router_logits(true).
//
// It is not linear in the tokens. In a pipeline it is computed for each micro-batch, as in a plain
// loop over micro-batches, and not for the mini-batch.
//
// Throws c10::ValueError for router logits of another shape and a per_token that they do not allow.
//
// Example:
//   const auto experts = options.block().experts();
//   pipe->step({ids}, {next_ids}, [=](const auto& outputs, const auto& targets) {
//     return torch::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten()) +
//            experts.balance_factor() * balance_loss(outputs[1], experts.per_token());
//   });
at::Tensor balance_loss(const at::Tensor& router_logits, int64_t per_token);

}  // namespace gpipe::models

#endif  // MODELS_BALANCE_LOSS_H_
