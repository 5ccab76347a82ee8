#include "models/blocks/experts.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <tuple>

namespace gpipe::models::internal {
namespace {

// Counts how many rows each expert gets. `choices`: the experts' numbers in ascending order.
std::vector<int64_t> rows_of_experts(const at::Tensor& choices, int64_t experts) {
  const at::Tensor numbers = at::arange(experts, choices.options());
  const at::Tensor ends =
      at::searchsorted(choices, numbers, /*out_int32=*/false, /*right=*/true).cpu();
  const auto end = ends.accessor<int64_t, 1>();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < experts; ++i) rows.push_back(end[i] - (i > 0 ? end[i - 1] : 0));
  return rows;
}

}  // namespace

Routing route(const at::Tensor& logits, const ExpertOptions& options) {
  const at::Tensor probabilities = logits.softmax(-1, at::kFloat);
  auto [weights, experts] = probabilities.topk(options.per_token(), -1);
  if (options.weights_sum_to_one()) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (!options.float32_weights()) weights = weights.to(logits.scalar_type());
  return {experts, weights};
}

std::vector<int64_t> rows_on_meta(int64_t rows, int64_t experts, int64_t per_token, bool worst) {
  std::vector<int64_t> shares;
  for (int64_t i = 0; i < experts; ++i) {
    if (worst) {
      shares.push_back(i < per_token ? rows : 0);
      continue;
    }
    shares.push_back(rows * per_token * (i + 1) / experts - rows * per_token * i / experts);
  }
  return shares;
}

at::Tensor through_experts(const at::Tensor& tokens, const Routing& routing,
                           const at::Tensor& gate_up, const at::Tensor& down, bool worst_on_meta,
                           const std::function<at::Tensor(const at::Tensor&)>& activation) {
  const int64_t count = tokens.size(0), width = tokens.size(1), experts = gate_up.size(0),
                per_token = routing.experts.size(1);
  // Lists all tokens with their first experts, then with their second ones, and sorts by expert.
  const auto [choices, order] =
      routing.experts.t().reshape({-1}).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor inputs =
      tokens.expand({per_token, count, width}).reshape({-1, width}).index_select(0, order);
  const std::vector<int64_t> rows = tokens.is_meta()
                                        ? rows_on_meta(count, experts, per_token, worst_on_meta)
                                        : rows_of_experts(choices, experts);
  const std::vector<at::Tensor> of_experts = inputs.split_with_sizes(rows),
                                gates_up = gate_up.unbind(0), downs = down.unbind(0);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    // Experts without tokens are skipped. If there are no tokens at all, the first expert still
    // runs, so that the autograd graph reaches the weights.
    if (rows[i] == 0 && (count > 0 || i > 0)) continue;
    const std::vector<at::Tensor> halves = at::linear(of_experts[i], gates_up[i]).chunk(2, -1);
    results.push_back(at::linear(activation(halves[0]) * halves[1], downs[i]));
  }
  const at::Tensor places =
      at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor outputs =
      at::cat(results).index_select(0, places).view({per_token, count, width});
  return (outputs * routing.weights.t().unsqueeze(-1)).to(tokens.scalar_type()).sum(0);
}

}  // namespace gpipe::models::internal
