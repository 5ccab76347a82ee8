#include "models/blocks/attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace gpipe::models::internal {
namespace {

// Which keys (columns) a query (row) must not see: (T, T), or (N, 1, T, T).
at::Tensor hidden_pairs(int64_t tokens, const at::Tensor& documents, int64_t window,
                        c10::Device device) {
  const at::Tensor all = at::ones({tokens, tokens}, at::TensorOptions(at::kBool).device(device));
  at::Tensor hidden = all.triu(1);
  if (window > 0 && window < tokens) hidden = hidden.logical_or(all.tril(-window));
  if (!documents.defined()) return hidden;
  return hidden.logical_or(documents.unsqueeze(2).ne(documents.unsqueeze(1))).unsqueeze(1);
}

// Attention by LibTorch's operator. `hidden`: the pairs that are masked; if it is undefined, each
// token sees all tokens up to itself.
at::Tensor fused_attention(const at::Tensor& queries, const at::Tensor& keys,
                           const at::Tensor& values, const at::Tensor& hidden,
                           const AttentionOptions& options) {
  const bool grouped = queries.size(1) != keys.size(1);
  const std::optional<double> scale =
      options.scale > 0 ? std::optional<double>(options.scale) : std::nullopt;
  const std::optional<at::Tensor> seen =
      hidden.defined() ? std::optional<at::Tensor>(hidden.logical_not()) : std::nullopt;
  return at::scaled_dot_product_attention(queries, keys, values, seen, options.dropout,
                                          /*is_causal=*/!seen, scale, grouped);
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
  // `weights` is the largest tensor of a layer, so it is scaled in place, and not through a view,
  // because that would copy it.
  weights.mul_(options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(size)));
  if (options.soft_cap > 0) weights = weights.div_(options.soft_cap).tanh_() * options.soft_cap;
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
  const bool all = options.window == 0 || options.window >= queries.size(2);
  if (options.fused && !documents.defined() && all) {
    return fused_attention(queries, keys, values, {}, options);
  }
  const at::Tensor hidden =
      hidden_pairs(queries.size(2), documents, options.window, queries.device());
  return options.fused ? fused_attention(queries, keys, values, hidden, options)
                       : written_out_attention(queries, keys, values, hidden, options);
}

at::Tensor attention_up_to(const at::Tensor& places, const at::Tensor& key_places,
                           const at::Tensor& queries, const at::Tensor& keys,
                           const at::Tensor& values, const AttentionOptions& options) {
  const at::Tensor theirs = key_places.unsqueeze(1), own = places.unsqueeze(2);
  at::Tensor hidden = theirs.gt(own).logical_or(theirs.lt(0));
  if (options.window > 0) hidden = hidden.logical_or(theirs.le(own - options.window));
  hidden = hidden.unsqueeze(1);
  return options.fused ? fused_attention(queries, keys, values, hidden, options)
                       : written_out_attention(queries, keys, values, hidden, options);
}

at::Tensor positions_in(const at::Tensor& documents) {
  const int64_t tokens = documents.size(1);
  const at::Tensor places = at::arange(tokens, documents.options().dtype(at::kLong));
  if (tokens == 0) return places.expand_as(documents);
  const at::Tensor changes = documents.slice(1, 1).ne(documents.slice(1, 0, -1));
  // A token's position is its place in the row minus the place where its document starts.
  const at::Tensor starts = at::constant_pad_nd(places.slice(0, 1) * changes, {1, 0});
  return places - std::get<0>(starts.cummax(1));
}

at::Tensor lengths_in(const at::Tensor& documents) {
  // A document's length is the number of tokens before a token, plus the number behind it, plus one
  // for the token itself.
  return positions_in(documents) + positions_in(documents.flip(1)).flip(1) + 1;
}

}  // namespace gpipe::models::internal
