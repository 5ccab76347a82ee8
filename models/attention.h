// causal_attention: each token's mean over the values of the tokens up to it, weighted by how its
// query fits their keys; rotary positions.
#ifndef MODELS_ATTENTION_H_
#define MODELS_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::models::internal {

struct AttentionOptions {
  double dropout = 0;            // of the weights; 0 in evaluation
  bool float32_softmax = false;  // whatever the type of the queries
  bool fused = false;            // by LibTorch's scaled_dot_product_attention
};

// Queries (N, heads, T, D), keys and values (N, kv_heads, T, D) -> (N, heads, T, D). Heads k *
// (heads / kv_heads) and those behind it use keys and values k.
//
// `documents`: numbers, (N, T), or undefined. With them a token looks only at tokens of the same
// number.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const at::Tensor& documents,
                            const AttentionOptions& options);

// The same for tokens behind others: queries (N, heads, T, D) of tokens at `places`, (N, T), and
// keys and values (N, kv_heads, S, D) of the places 0 to S - 1, of which a token sees those up to
// its own.
at::Tensor attention_up_to(const at::Tensor& places, const at::Tensor& queries,
                           const at::Tensor& keys, const at::Tensor& values,
                           const AttentionOptions& options);

// The place of each token in its document, (N, T), for documents that lie one behind another: 0 at
// the first token of a row and wherever the number changes.
at::Tensor positions_in(const at::Tensor& documents);

// The angles' cosines and sines, (T, D), or (N, 1, T, D) for positions (N, T), computed in float32
// and given in `type`. The first half of a head is rotated with the second: columns i and i + D / 2
// have the wavelength 2 pi theta^(2 i / D) (Su et al., "RoFormer", 2021).
struct Rotation {
  at::Tensor cosines, sines;
};
Rotation rotation(const at::Tensor& positions, int64_t head_size, double theta,
                  at::ScalarType type);

// (N, heads, T, D) -> the same, each head's halves rotated.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

}  // namespace gpipe::models::internal

#endif  // MODELS_ATTENTION_H_
