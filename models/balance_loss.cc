#include "models/balance_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <tuple>

namespace gpipe::models {

at::Tensor balance_loss(const at::Tensor& router_logits, int64_t per_token) {
  TORCH_CHECK_VALUE(router_logits.defined() && router_logits.dim() == 4 &&
                        router_logits.is_floating_point() && router_logits.size(2) > 0,
                    "router logits must be [rows, tokens, blocks, experts], the second output of a "
                    "model with router_logits(true), got ",
                    router_logits.defined() ? router_logits.sizes() : at::IntArrayRef());
  const int64_t blocks = router_logits.size(2), experts = router_logits.size(3);
  TORCH_CHECK_VALUE(per_token > 0 && per_token <= experts, "per_token must be from 1 to ", experts,
                    ", the number of experts, got ", per_token);
  const at::TensorOptions floats = router_logits.options().dtype(at::kFloat);
  at::Tensor tokens = at::zeros({experts}, floats), probabilities = at::zeros({experts}, floats);
  for (int64_t block = 0; block < blocks; ++block) {
    // The logits are made contiguous, so that sums are in the same order as over the logits of a
    // single block.
    const at::Tensor logits = router_logits.select(2, block).contiguous().view({-1, experts});
    const at::Tensor weights = logits.softmax(-1);
    const at::Tensor chosen = std::get<1>(weights.topk(per_token, -1)).view({-1, 1});
    tokens = tokens + chosen.eq(at::arange(experts, chosen.options())).sum(0).to(at::kFloat);
    probabilities = probabilities + weights.to(at::kFloat).sum(0);
  }
  const auto rows = static_cast<double>(router_logits.size(0) * router_logits.size(1) * blocks);
  return (tokens / rows * (probabilities / rows)).sum() * experts;
}

}  // namespace gpipe::models
