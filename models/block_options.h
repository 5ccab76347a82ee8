// BlockOptions: the parts of a language model's blocks: norms, attention, positions, MLP.
//
// A family of models (models/families/families.h) consists of such options and of names of fields
// and weights.
#ifndef MODELS_BLOCK_OPTIONS_H_
#define MODELS_BLOCK_OPTIONS_H_

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::models {

// An RMSNorm (Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019) is computed in float32
// whatever the tensor's type. Its kinds differ in what is rounded to that type, and when; so they
// differ in bfloat16 and float16.
enum class NormKind : uint8_t {
  kLayerNorm,       // with a bias
  kRMSNorm,         // rounded, then times the weight (Llama)
  kRMSNormRounded,  // times the weight, then rounded (OLMo 2)
  kRMSNormFromOne,  // times 1 + weight, both in float32, then rounded (Gemma); weights begin as 0
};

// Where the norms of attention and MLP are.
enum class NormPlace : uint8_t {
  kBefore,  // x + f(norm(x))
  kBehind,  // x + norm(f(x))
  kBoth,    // x + norm(f(norm(x)))
};

// Norms of queries and keys, before they are rotated.
enum class HeadNorm : uint8_t {
  kNone,
  kEachHead,  // with one weight for all heads (Qwen 3)
  kAllHeads,  // a norm of all heads together (OLMo 2)
};

enum class Activation : uint8_t { kGeluTanh, kGelu, kSilu, kRelu };

// How the wavelengths of rotary positions are stretched for texts that are longer than those that a
// model was trained on.
enum class RotaryKind : uint8_t {
  kPlain,     // not at all
  kLinear,    // all by `factor`
  kDynamic,   // by a base that grows with the text beyond `original_positions`
  kYarn,      // the long ones (Peng et al., "YaRN", 2023)
  kLongRope,  // each by its own factor, which depends on the text's length (Ding et al., 2024)
  kLlama3,    // the long ones
};

// A value type. Each kind uses only the fields that it names above or that name it.
struct RotaryOptions {
  TORCH_ARG(RotaryKind, kind) = RotaryKind::kPlain;
  // The base of the wavelengths. Default: 0, TransformerOptions::rope_theta.
  TORCH_ARG(double, theta) = 0;
  // What part of a head is rotated: the first int(head_size * part) columns. Default: 1.
  TORCH_ARG(double, part) = 1;
  TORCH_ARG(double, factor) = 1;
  // The length of the texts before stretching. Default: 0, TransformerOptions::max_positions.
  TORCH_ARG(int64_t, original_positions) = 0;
  // The factor of cosines and sines (kYarn, kLongRope). Default: 1.
  TORCH_ARG(double, attention_factor) = 1;
  // Wavelengths with at least beta_fast rotations within original_positions are kept, those with at
  // most beta_slow are stretched by `factor` (kYarn). `whole_range`: the range between is widened
  // to whole columns.
  TORCH_ARG(double, beta_fast) = 32;
  TORCH_ARG(double, beta_slow) = 1;
  TORCH_ARG(bool, whole_range) = true;
  // The same two bounds for kLlama3: low_freq_factor is like beta_slow, high_freq_factor like
  // beta_fast.
  TORCH_ARG(double, low_freq_factor) = 1;
  TORCH_ARG(double, high_freq_factor) = 4;
  // Factors for each pair of columns: for texts up to original_positions, and for longer ones
  // (kLongRope).
  TORCH_ARG(std::vector<double>, short_factors);
  TORCH_ARG(std::vector<double>, long_factors);

 public:
  // Whether a text's length changes the angles of its first token.
  bool depends_on_length() const {
    return kind_ == RotaryKind::kDynamic || kind_ == RotaryKind::kLongRope;
  }
};

// A mixture of experts in the place of an MLP: each token goes through those experts that a router
// gives it, and gets their weighted sum (Shazeer et al., "Outrageously Large Neural Networks",
// 2017). A value type.
struct ExpertOptions {
  TORCH_ARG(int64_t, count) = 0;  // the number of experts, at most 4096; 0: there are none
  TORCH_ARG(int64_t, per_token) = 2;
  // The width within an expert. Default: 0, TransformerOptions::intermediate_size.
  TORCH_ARG(int64_t, size) = 0;
  // The width within a further expert for all tokens, times the sigmoid of a product (Qwen 1.5).
  // Default: 0, there is none.
  TORCH_ARG(int64_t, shared_size) = 0;
  // The weights of a token's experts are divided by their sum. Default: true.
  TORCH_ARG(bool, weights_sum_to_one) = true;
  // The weights of a token's experts stay in float32, and an expert's output is rounded after it is
  // multiplied (Mixtral). Default: false.
  TORCH_ARG(bool, float32_weights) = false;
  // The factor of balance_loss (models/balance_loss.h) in training. Default: 0.001.
  TORCH_ARG(double, balance_factor) = 0.001;
  // On meta, where routers have no values, all tokens go to the same experts: the worst case of a
  // plan. Default: false, all experts get the same number.
  TORCH_ARG(bool, worst_on_meta) = false;
};

// The options that may differ from layer to layer. A value type.
struct LayerKind {
  // A token looks at itself and the window - 1 tokens before it. Default: 0, at all before it.
  TORCH_ARG(int64_t, window) = 0;
  // Whether queries and keys are rotated by their positions. Default: true.
  TORCH_ARG(bool, rotates) = true;
  TORCH_ARG(RotaryOptions, rotary);
  // Whether the block's MLP is the mixture of experts, if there is one. Default: true.
  TORCH_ARG(bool, sparse) = true;
};

// A value type. The defaults are Llama's.
//
// Example:
//   TransformerOptions options(TransformerKind::kLlama);
//   options.block().qkv_bias(true).kinds({LayerKind().window(4096)});
struct BlockOptions {
  TORCH_ARG(NormKind, norm) = NormKind::kRMSNorm;
  TORCH_ARG(NormPlace, norm_place) = NormPlace::kBefore;
  TORCH_ARG(HeadNorm, head_norm) = HeadNorm::kNone;
  // A matrix of positions is added to the embedding, for layers that do not rotate. Default: false.
  TORCH_ARG(bool, learned_positions) = false;

  TORCH_ARG(bool, qkv_bias) = false;
  TORCH_ARG(bool, output_bias) = false;
  // `qkv` makes a head's query, key and value together, instead of all queries, then all keys. It
  // needs as many heads of keys as of queries. Default: false.
  TORCH_ARG(bool, qkv_by_head) = false;
  // The factor of the products of queries and keys. Default: 0, which stands for 1 /
  // sqrt(head_size).
  TORCH_ARG(double, attention_scale) = 0;
  // These products become cap * tanh(product / cap), and so do logits by logit_soft_cap. Default:
  // 0, no cap.
  TORCH_ARG(double, attention_soft_cap) = 0;
  TORCH_ARG(double, logit_soft_cap) = 0;
  // Attention's softmax is computed in float32 whatever the tensor's type. Default: true.
  TORCH_ARG(bool, float32_softmax) = true;
  // Queries and keys are rotated in float32 where their type has less. Default: false.
  TORCH_ARG(bool, float32_rotation) = false;

  // down(activation(gate) * up) (Shazeer, "GLU Variants Improve Transformer", 2020), or
  // down(activation(up)). Default: true.
  TORCH_ARG(bool, gated) = true;
  // Gate and up are one matrix, `up`, with the gate's rows first. Default: false.
  TORCH_ARG(bool, gate_in_up) = false;
  TORCH_ARG(Activation, activation) = Activation::kSilu;
  TORCH_ARG(bool, mlp_bias) = false;
  // The experts of blocks whose kind is `sparse`. Default: no experts.
  TORCH_ARG(ExpertOptions, experts);
  // The block is x + attention(norm(x)) + mlp(other_norm(x)): both see the block's input
  // (GPT-NeoX). Default: false, the MLP sees what attention has added.
  TORCH_ARG(bool, parallel) = false;

  // The embedding's output is multiplied with sqrt(hidden_size), rounded to float32 and to the
  // weight's type. Default: false.
  TORCH_ARG(bool, scaled_embedding) = false;
  // The last matrices of attention and MLP are drawn with 1 / sqrt(2 * num_layers) of the others'
  // deviation (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
  TORCH_ARG(bool, small_last_matrices) = false;

  // The kinds of layers, and for each block the place of its kind in that list. Default: one kind,
  // and an empty list: all blocks are of that kind.
  TORCH_ARG(std::vector<LayerKind>, kinds) = std::vector<LayerKind>(1);
  TORCH_ARG(std::vector<int64_t>, kind_of_block);

 public:
  const LayerKind& kind_of(int64_t block) const {
    return kind_of_block_.empty() ? kinds_.front() : kinds_[kind_of_block_[block]];
  }
  bool has_experts(int64_t block) const { return experts_.count() > 0 && kind_of(block).sparse(); }
};

}  // namespace gpipe::models

#endif  // MODELS_BLOCK_OPTIONS_H_
