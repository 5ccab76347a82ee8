#include "models/attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace gpipe::models::internal {
namespace {

// Which keys (columns) a query (row) must not see: (T, T), or (N, 1, T, T).
at::Tensor hidden_pairs(int64_t tokens, const at::Tensor& documents, c10::Device device) {
  at::Tensor later =
      at::ones({tokens, tokens}, at::TensorOptions(at::kBool).device(device)).triu(1);
  if (!documents.defined()) return later;
  return later.logical_or(documents.unsqueeze(2).ne(documents.unsqueeze(1))).unsqueeze(1);
}

// With a mask of the pairs that are hidden; undefined: each token sees those up to it.
at::Tensor fused_attention(const at::Tensor& queries, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& hidden,
                           const AttentionOptions& options) {
  const bool grouped = queries.size(1) != keys.size(1);
  const std::optional<at::Tensor> seen =
      hidden.defined() ? std::optional<at::Tensor>(hidden.logical_not()) : std::nullopt;
  return at::scaled_dot_product_attention(queries, keys, values, seen, options.dropout,
                                          /*is_causal=*/!seen, std::nullopt, grouped);
}

at::Tensor written_out_attention(const at::Tensor& queries, const at::Tensor& keys,
                                 const at::Tensor& values, at::Tensor hidden,
                                 const AttentionOptions& options) {
  const int64_t rows = queries.size(0), heads = queries.size(1), tokens = queries.size(2),
                size = queries.size(3), kv_heads = keys.size(1), group = heads / kv_heads;
  // The queries of heads that share keys are further rows of one product, so that no key is
  // repeated in memory.
  at::Tensor weights =
      at::matmul(queries.reshape({rows, kv_heads, group * tokens, size}), keys.transpose(2, 3));
  if (group > 1) hidden = at::cat(std::vector<at::Tensor>(group, hidden), -2);
  // In place, for this is the largest tensor of a layer; not on a view of it, which would copy it.
  weights.mul_(1 / std::sqrt(static_cast<double>(size)));
  weights.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  weights = options.float32_softmax ? weights.softmax(-1, at::kFloat).to(queries.scalar_type())
                                    : weights.softmax(-1);
  if (options.dropout > 0) weights = at::dropout(weights, options.dropout, /*train=*/true);
  return at::matmul(weights, values).view({rows, heads, tokens, size});
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const at::Tensor& documents,
                            const AttentionOptions& options) {
  if (options.fused && !documents.defined()) {
    return fused_attention(queries, keys, values, {}, options);
  }
  const at::Tensor hidden = hidden_pairs(queries.size(2), documents, queries.device());
  return options.fused ? fused_attention(queries, keys, values, hidden, options)
                       : written_out_attention(queries, keys, values, hidden, options);
}

at::Tensor attention_up_to(const at::Tensor& places, const at::Tensor& queries,
                           const at::Tensor& keys, const at::Tensor& values,
                           const AttentionOptions& options) {
  const at::Tensor hidden =
      at::arange(keys.size(2), places.options()).gt(places.unsqueeze(2)).unsqueeze(1);
  return options.fused ? fused_attention(queries, keys, values, hidden, options)
                       : written_out_attention(queries, keys, values, hidden, options);
}

at::Tensor positions_in(const at::Tensor& documents) {
  const int64_t tokens = documents.size(1);
  const at::Tensor places = at::arange(tokens, documents.options().dtype(at::kLong));
  if (tokens == 0) return places.expand_as(documents);
  const at::Tensor changes = documents.slice(1, 1).ne(documents.slice(1, 0, -1));
  // Each token's place less that of the last change up to it.
  const at::Tensor starts = at::constant_pad_nd(places.slice(0, 1) * changes, {1, 0});
  return places - std::get<0>(starts.cummax(1));
}

Rotation rotation(const at::Tensor& positions, int64_t head_size, double theta,
                  at::ScalarType type) {
  const at::Tensor exponents =
      at::arange(0, head_size, 2, positions.options().dtype(at::kFloat)) / head_size;
  const at::Tensor half =
      positions.unsqueeze(-1).to(at::kFloat) * at::pow(theta, exponents).reciprocal();
  at::Tensor angles = at::cat({half, half}, -1);
  if (positions.dim() == 2) angles = angles.unsqueeze(1);
  return {angles.cos().to(type), angles.sin().to(type)};
}

at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation) {
  const std::vector<at::Tensor> halves = heads.chunk(2, -1);
  const at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
  return heads * rotation.cosines + turned * rotation.sines;
}

}  // namespace gpipe::models::internal
