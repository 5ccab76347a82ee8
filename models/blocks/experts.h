// experts: runs tokens through the experts of a mixture that a router chooses for them.
//
// How many rows an expert gets depends on the values, so each call waits once for its device. On
// meta, where there are no values, all experts get the same number (or see
// ExpertOptions::worst_on_meta).
#ifndef MODELS_BLOCKS_EXPERTS_H_
#define MODELS_BLOCKS_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "models/block_options.h"

namespace gpipe::models::internal {

struct Routing {
  at::Tensor experts;  // (S, per_token): numbers of each token's experts, the likeliest first
  at::Tensor weights;  // (S, per_token)
};

// `logits`: (S, count). The softmax is in float32 whatever their type.
Routing route(const at::Tensor& logits, const ExpertOptions& options);

// Each token's weighted sum of its experts' outputs, (S, width): down(activation(gate) * up).
// `tokens`: (S, width); `gate_up`: (count, 2 * size, width), the gate's rows first; `down`: (count,
// width, size). An expert without a token gets zeros as gradient.
//
// Sums are in the same order each time, also on GPUs: no row is added to another by its index.
at::Tensor through_experts(const at::Tensor& tokens, const Routing& routing,
                           const at::Tensor& gate_up, const at::Tensor& down, bool worst_on_meta,
                           const std::function<at::Tensor(const at::Tensor&)>& activation);

// How many of `rows` tokens each expert gets on meta.
std::vector<int64_t> rows_on_meta(int64_t rows, int64_t experts, int64_t per_token, bool worst);

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_EXPERTS_H_
