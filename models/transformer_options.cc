#include "models/transformer_options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/check_size.h"

namespace gpipe::models {
namespace {

using internal::check_size;

void check_probability(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, name, " must be at least 0 and below 1, got ", value);
}

void check_positive(const char* name, double value) {
  TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), name, " must be a positive number, got ",
                    value);
}

void check_not_negative(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), name,
                    " must be a positive number, or 0 for none, got ", value);
}

void check_rotary(const TransformerOptions& options, const RotaryOptions& rotary) {
  check_not_negative("the theta of rotary positions", rotary.theta());
  TORCH_CHECK_VALUE(rotary.part() > 0 && rotary.part() <= 1,
                    "the part of a head that is rotated must be above 0 and at most 1, got ",
                    rotary.part());
  const auto columns =
      static_cast<int64_t>(static_cast<double>(options.size_of_head()) * rotary.part());
  TORCH_CHECK_VALUE(rotary.part() < 1 || columns % 2 == 0,
                    "head_size must be even for rotary positions, got ", columns);
  TORCH_CHECK_VALUE(columns % 2 == 0 && columns > 0,
                    "the rotated columns of a head must be a positive even number, got ", columns,
                    " of head_size ", options.size_of_head());
  check_positive("the factor of rotary positions", rotary.factor());
  check_positive("the attention_factor of rotary positions", rotary.attention_factor());
  check_size("the original_positions of rotary positions", rotary.original_positions(), 0,
             int64_t{1} << 24);
  TORCH_CHECK_VALUE(rotary.kind() != RotaryKind::kDynamic || columns > 2,
                    "dynamic rotary positions need more than 2 rotated columns, got ", columns);
  if (rotary.kind() == RotaryKind::kYarn) {
    check_positive("beta_fast", rotary.beta_fast());
    check_positive("beta_slow", rotary.beta_slow());
    const double theta = rotary.theta() > 0 ? rotary.theta() : options.rope_theta();
    TORCH_CHECK_VALUE(theta > 1, "the theta of YaRN's positions must be above 1, got ", theta);
  }
  if (rotary.kind() == RotaryKind::kLlama3) {
    check_positive("low_freq_factor", rotary.low_freq_factor());
    TORCH_CHECK_VALUE(std::isfinite(rotary.high_freq_factor()) &&
                          rotary.high_freq_factor() > rotary.low_freq_factor(),
                      "high_freq_factor must be above low_freq_factor, got ",
                      rotary.high_freq_factor(), " and ", rotary.low_freq_factor());
  }
  if (rotary.kind() != RotaryKind::kLongRope) return;
  for (const auto* factors : {&rotary.short_factors(), &rotary.long_factors()}) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(factors->size()) == columns / 2,
                      "short_factors and long_factors must be one for each pair of the ", columns,
                      " rotated columns, got ", factors->size());
    for (const double factor : *factors) check_positive("a factor of rotary positions", factor);
  }
}

void check_experts(const TransformerOptions& options) {
  const ExpertOptions& experts = options.block().experts();
  check_size("the count of experts", experts.count(), 0, 4096);
  TORCH_CHECK_VALUE(experts.count() > 0 || !options.router_logits(),
                    "router_logits needs blocks with experts: set the block's experts().count()");
  if (experts.count() == 0) return;
  const std::vector<LayerKind>& kinds = options.block().kinds();
  TORCH_CHECK_VALUE(!options.router_logits() ||
                        (options.num_layers() > 0 &&
                         std::any_of(kinds.begin(), kinds.end(),
                                     [](const LayerKind& kind) { return kind.sparse(); })),
                    "router_logits needs blocks with experts: none is of a sparse kind");
  check_size("the experts per_token", experts.per_token(), 1, experts.count());
  check_size("the size of experts", experts.size(), 0, int64_t{1} << 22);
  check_size("the shared_size of experts", experts.shared_size(), 0, int64_t{1} << 22);
  check_not_negative("the balance_factor of experts", experts.balance_factor());
  const BlockOptions& block = options.block();
  TORCH_CHECK_VALUE(
      block.gated() && !block.gate_in_up() && !block.mlp_bias(),
      "experts are gated MLPs with a gate of their own and no biases: set gated(true), "
      "gate_in_up(false) and mlp_bias(false)");
}

void check_block(const TransformerOptions& options) {
  const BlockOptions& block = options.block();
  check_not_negative("attention_scale", block.attention_scale());
  check_not_negative("attention_soft_cap", block.attention_soft_cap());
  check_not_negative("logit_soft_cap", block.logit_soft_cap());
  TORCH_CHECK_VALUE(!block.qkv_by_head() || options.kv_heads() == options.num_heads(),
                    "qkv_by_head needs as many num_kv_heads as num_heads, got ", options.kv_heads(),
                    " and ", options.num_heads());
  TORCH_CHECK_VALUE(!block.gate_in_up() || block.gated(), "gate_in_up needs a gated MLP");
  TORCH_CHECK_VALUE(block.attention_soft_cap() == 0 || !options.fused_attention(),
                    "fused_attention has no soft cap: LibTorch's scaled_dot_product_attention "
                    "computes none; take fused_attention(false)");
  TORCH_CHECK_VALUE(!block.parallel() || block.norm_place() == NormPlace::kBefore,
                    "parallel attention and MLP need their norms before them: norm_place must be "
                    "kBefore");
  TORCH_CHECK_VALUE(!block.kinds().empty(), "the block must have a kind of layers, got none");
  for (const LayerKind& kind : block.kinds()) {
    check_size("window", kind.window(), 0, int64_t{1} << 40);
    if (kind.rotates()) check_rotary(options, kind.rotary());
  }
  check_experts(options);
  const std::vector<int64_t>& of_block = block.kind_of_block();
  if (of_block.empty()) return;
  TORCH_CHECK_VALUE(static_cast<int64_t>(of_block.size()) == options.num_layers(),
                    "kind_of_block must have num_layers entries, got ", of_block.size(), " for ",
                    options.num_layers(), " layers");
  for (const int64_t kind : of_block) {
    check_size("an entry of kind_of_block", kind, 0,
               static_cast<int64_t>(block.kinds().size()) - 1);
  }
}

TransformerOptions gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  return TransformerOptions(TransformerKind::kGPT2)
      .num_layers(layers)
      .hidden_size(hidden)
      .num_heads(heads);
}

TransformerOptions llama(int64_t layers, int64_t hidden, int64_t heads, int64_t intermediate) {
  return TransformerOptions(TransformerKind::kLlama)
      .num_layers(layers)
      .hidden_size(hidden)
      .num_heads(heads)
      .intermediate_size(intermediate);
}

}  // namespace

const char* to_text(TransformerKind kind) {
  return kind == TransformerKind::kGPT2 ? "gpt2" : "llama";
}

BlockOptions blocks_of(TransformerKind kind) {
  TORCH_CHECK_VALUE(kind == TransformerKind::kGPT2 || kind == TransformerKind::kLlama,
                    "kind must be kGPT2 or kLlama, got ", static_cast<int>(kind));
  if (kind == TransformerKind::kLlama) return {};
  return BlockOptions()
      .norm(NormKind::kLayerNorm)
      .learned_positions(true)
      .qkv_bias(true)
      .output_bias(true)
      .float32_softmax(false)
      .gated(false)
      .activation(Activation::kGeluTanh)
      .mlp_bias(true)
      .small_last_matrices(true)
      .kinds({LayerKind().rotates(false)});
}

TransformerOptions& TransformerOptions::kind(TransformerKind kind) {
  block_ = blocks_of(kind);
  kind_ = kind;
  return *this;
}

TransformerOptions::TransformerOptions(TransformerKind kind) : kind_(kind) {
  // If the number is not a kind, block_ stays as it is: check() will refuse the kind and name the
  // option.
  if (kind == TransformerKind::kGPT2 || kind == TransformerKind::kLlama) block_ = blocks_of(kind);
  if (kind == TransformerKind::kGPT2) {
    vocab_size_ = 50257;
    max_positions_ = 1024;
    num_layers_ = 12;
    hidden_size_ = 768;
    num_heads_ = 12;
    tied_ = true;
  } else {
    vocab_size_ = 32000;
    max_positions_ = 4096;
    num_layers_ = 32;
    hidden_size_ = 4096;
    num_heads_ = 32;
    intermediate_size_ = 11008;
    tied_ = false;
  }
  norm_epsilon_ = 1e-5;
}

void check(const TransformerOptions& options) {
  TORCH_CHECK_VALUE(
      options.kind() == TransformerKind::kGPT2 || options.kind() == TransformerKind::kLlama,
      "kind must be kGPT2 or kLlama, got ", static_cast<int>(options.kind()));
  check_size("vocab_size", options.vocab_size(), 1, int64_t{1} << 24);
  check_size("max_positions", options.max_positions(), 1, int64_t{1} << 24);
  check_size("num_layers", options.num_layers(), 0, 1024);
  check_size("hidden_size", options.hidden_size(), 1, int64_t{1} << 20);
  check_size("num_heads", options.num_heads(), 1, 4096);
  check_size("num_kv_heads", options.num_kv_heads(), 0, 4096);
  check_size("head_size", options.head_size(), 0, int64_t{1} << 20);
  check_size("intermediate_size", options.intermediate_size(), 0, int64_t{1} << 22);
  TORCH_CHECK_VALUE(options.head_size() > 0 || options.hidden_size() % options.num_heads() == 0,
                    "hidden_size must be a multiple of num_heads (or head_size be given), got ",
                    options.hidden_size(), " and ", options.num_heads());
  TORCH_CHECK_VALUE(options.num_heads() % options.kv_heads() == 0,
                    "num_heads must be a multiple of num_kv_heads, got ", options.num_heads(),
                    " and ", options.kv_heads());
  if (options.family_name() == "gpt2") {
    TORCH_CHECK_VALUE(options.kv_heads() == options.num_heads(),
                      "num_kv_heads must be num_heads or 0 for GPT-2, got ", options.kv_heads());
    TORCH_CHECK_VALUE(options.size_of_head() * options.num_heads() == options.hidden_size(),
                      "head_size must be hidden_size / num_heads or 0 for GPT-2, got ",
                      options.head_size());
  }
  check_positive("norm_epsilon", options.norm_epsilon());
  check_positive("rope_theta", options.rope_theta());
  check_probability("embedding_dropout", options.embedding_dropout());
  check_probability("residual_dropout", options.residual_dropout());
  check_probability("attention_dropout", options.attention_dropout());
  TORCH_CHECK_VALUE(options.initializer_range() >= 0 && std::isfinite(options.initializer_range()),
                    "initializer_range must be a number of at least 0, got ",
                    options.initializer_range());
  check_block(options);
}

TransformerOptions gpt2_small() { return gpt2(12, 768, 12); }
TransformerOptions gpt2_medium() { return gpt2(24, 1024, 16); }
TransformerOptions gpt2_large() { return gpt2(36, 1280, 20); }
TransformerOptions gpt2_xl() { return gpt2(48, 1600, 25); }
TransformerOptions llama_7b() { return llama(32, 4096, 32, 11008); }
TransformerOptions llama_13b() { return llama(40, 5120, 40, 13824); }
TransformerOptions llama_70b() { return llama(80, 8192, 64, 28672).num_kv_heads(8); }

}  // namespace gpipe::models
