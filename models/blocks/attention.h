// causal_attention: each token's mean over the values of the tokens up to it, weighted by how its
// query fits their keys.
#ifndef MODELS_BLOCKS_ATTENTION_H_
#define MODELS_BLOCKS_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::models::internal {

struct AttentionOptions {
  double dropout = 0;            // dropout of the weights; 0 in evaluation
  bool float32_softmax = false;  // the softmax is in float32, whatever the type of the queries
  bool fused = false;            // whether LibTorch's scaled_dot_product_attention computes it
  double scale = 0;              // the factor of the products; 0: 1 / sqrt(D)
  double soft_cap = 0;  // products become cap * tanh(product / cap); 0: no cap. Not if `fused`
  int64_t window = 0;   // a token sees itself and the window - 1 before it; 0: all
};

// Queries (N, heads, T, D), keys and values (N, kv_heads, T, D) -> (N, heads, T, D). Heads k *
// (heads / kv_heads) and those behind it use keys and values k.
//
// `documents`: numbers, (N, T), or undefined. With them a token looks only at tokens of the same
// number.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const at::Tensor& documents,
                            const AttentionOptions& options);

// Attention for tokens that continue a text: queries (N, heads, T, D) of the tokens at `places`,
// (N, T), with keys and values (N, kv_heads, S, D) of `key_places`, (N or 1, S). A token sees the
// places from 0 up to its own.
at::Tensor attention_up_to(const at::Tensor& places, const at::Tensor& key_places,
                           const at::Tensor& queries, const at::Tensor& keys,
                           const at::Tensor& values, const AttentionOptions& options);

// The place of each token in its document, (N, T), for documents that lie one behind another: 0 at
// the first token of a row and wherever the number changes.
at::Tensor positions_in(const at::Tensor& documents);

// For each token the number of tokens in its document, (N, T), for documents that lie one behind
// another.
at::Tensor lengths_in(const at::Tensor& documents);

}  // namespace gpipe::models::internal

#endif  // MODELS_BLOCKS_ATTENTION_H_
