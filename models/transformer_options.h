// TransformerOptions: the shape of a decoder-only language model, and the shapes of well-known
// ones.
#ifndef MODELS_TRANSFORMER_OPTIONS_H_
#define MODELS_TRANSFORMER_OPTIONS_H_

#include <torch/arg.h>

#include <cstdint>
#include <string>

#include "models/block_options.h"

namespace gpipe::models {

// The kind of model from whose blocks the options start.
enum class TransformerKind : uint8_t {
  kGPT2,   // learned positions, LayerNorm, tanh-GELU, biases (Radford et al., 2019)
  kLlama,  // rotary positions, RMSNorm, SwiGLU, no biases (Touvron et al., 2023)
};
const char* to_text(TransformerKind kind);  // "gpt2", "llama"

// The blocks of the kind. Throws c10::ValueError for a number that is not a kind.
BlockOptions blocks_of(TransformerKind kind);

// A value type. Sizes that are 0 follow from others.
//
// Example:
//   TransformerOptions(TransformerKind::kLlama).hidden_size(512).num_heads(8).num_kv_heads(2)
struct TransformerOptions {
  // The defaults are those of the smallest GPT-2, or of a Llama of 7 billion parameters.
  TransformerOptions(TransformerKind kind);  // NOLINT: implicit, as LibTorch's options are

  TransformerKind kind() const { return kind_; }
  // Sets the kind, and the block that belongs to it.
  TransformerOptions& kind(TransformerKind kind);

  // The blocks, if they differ from the kind's: Mistral's, Qwen's, Gemma's.
  TORCH_ARG(BlockOptions, block);
  // The family whose names config.json and weights have (models/families/families.h): "mistral".
  // read_config sets it. Default: "", the kind's.
  TORCH_ARG(std::string, family);
  TORCH_ARG(int64_t, vocab_size);  // at most 2^24
  // The longest sequence. Learned positions are a matrix of this many rows. With rotary positions
  // it is the length that the model is trained on; longer sequences are allowed. At most 2^24.
  TORCH_ARG(int64_t, max_positions);
  TORCH_ARG(int64_t, num_layers);   // blocks, at most 1024
  TORCH_ARG(int64_t, hidden_size);  // at most 2^20
  TORCH_ARG(int64_t, num_heads);    // heads of queries, at most 4096
  // The number of heads of keys and values; each serves the same number of heads of queries
  // (Ainslie et al., "GQA", 2023). Default: 0, num_heads. GPT-2 allows no other number.
  TORCH_ARG(int64_t, num_kv_heads) = 0;
  // The width of a head. Default: 0, hidden_size / num_heads. GPT-2 allows no other. Rotary
  // positions need an even one.
  TORCH_ARG(int64_t, head_size) = 0;
  // The width within the MLP; 0: 4 * hidden_size. At most 2^22. Default: 0 for GPT-2, 11008 for
  // Llama.
  TORCH_ARG(int64_t, intermediate_size) = 0;
  // Whether the head multiplies with the matrix of the embedding. Default: true for GPT-2.
  TORCH_ARG(bool, tied);
  TORCH_ARG(double, norm_epsilon);
  TORCH_ARG(double, rope_theta) = 10000;  // the base of the rotations' wavelengths
  // The probabilities of dropout, of the embedding's output, of what a block adds, and of
  // attention's weights. Default: 0.
  TORCH_ARG(double, embedding_dropout) = 0;
  TORCH_ARG(double, residual_dropout) = 0;
  TORCH_ARG(double, attention_dropout) = 0;
  // Whether attention is LibTorch's scaled_dot_product_attention, which on most devices does not
  // keep the weights of all pairs of tokens. Without, it is written out in products and a softmax.
  // Results differ in rounding. Default: false.
  TORCH_ARG(bool, fused_attention) = false;
  // Whether rows hold several documents, one behind the other: the model takes {ids, documents},
  // with the numbers of the tokens' documents, and computes what each document would give alone. If
  // a number comes again behind another one, its tokens look back at the first ones, but their
  // places count anew. Default: false.
  TORCH_ARG(bool, packed) = false;
  // Whether the last layer only passes its input on, and the loss function multiplies with its
  // matrix, in pieces: see models/head_loss.h. Default: false.
  TORCH_ARG(bool, head_in_loss) = false;
  // Whether the model gives its routers' logits, too: {logits, router logits}, the latter (rows,
  // tokens, blocks with experts, experts), for balance_loss (models/balance_loss.h). Needs blocks
  // with experts. Default: false.
  TORCH_ARG(bool, router_logits) = false;
  // Matrices are drawn from a normal distribution with this standard deviation. The second matrices
  // of GPT-2's attention and MLP have 1 / sqrt(2 * num_layers) of it. Biases are 0, norms 1.
  TORCH_ARG(double, initializer_range) = 0.02;

 private:
  TransformerKind kind_;

 public:
  // The model_type of config.json.
  std::string family_name() const { return family_.empty() ? to_text(kind_) : family_; }
  // The sizes, with the values that stand for 0 filled in.
  int64_t kv_heads() const { return num_kv_heads_ > 0 ? num_kv_heads_ : num_heads_; }
  int64_t size_of_head() const { return head_size_ > 0 ? head_size_ : hidden_size_ / num_heads_; }
  int64_t mlp_size() const {
    return intermediate_size_ > 0 ? intermediate_size_ : 4 * hidden_size_;
  }
  int64_t expert_size() const {
    const int64_t size = block_.experts().size();
    return size > 0 ? size : mlp_size();
  }
};

// Throws c10::ValueError, with the option's name and value, for options that do not make a network,
// or one far larger than any that exists.
void check(const TransformerOptions& options);

// The shapes of published models. GPT-2: 124, 355, 774 and 1,558 million parameters, without the
// dropout that it was trained with. Llama 2: 6.7, 13.0 and 69.0 billion.
TransformerOptions gpt2_small();
TransformerOptions gpt2_medium();
TransformerOptions gpt2_large();
TransformerOptions gpt2_xl();
TransformerOptions llama_7b();
TransformerOptions llama_13b();
TransformerOptions llama_70b();

}  // namespace gpipe::models

#endif  // MODELS_TRANSFORMER_OPTIONS_H_
