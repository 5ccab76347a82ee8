#include "models/transformer_options.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace gpipe::models {
namespace {

void check_size(const char* name, int64_t value, int64_t least, int64_t most) {
  TORCH_CHECK_VALUE(value >= least && value <= most, name, " must be from ", least, " to ", most,
                    ", got ", value);
}

void check_probability(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, name, " must be at least 0 and below 1, got ", value);
}

void check_positive(const char* name, double value) {
  TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), name, " must be a positive number, got ",
                    value);
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

TransformerOptions::TransformerOptions(TransformerKind kind) : kind_(kind) {
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
  const bool gpt2 = options.kind() == TransformerKind::kGPT2;
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
  if (gpt2) {
    TORCH_CHECK_VALUE(options.kv_heads() == options.num_heads(),
                      "num_kv_heads must be num_heads or 0 for GPT-2, got ", options.kv_heads());
    TORCH_CHECK_VALUE(options.size_of_head() * options.num_heads() == options.hidden_size(),
                      "head_size must be hidden_size / num_heads or 0 for GPT-2, got ",
                      options.head_size());
  } else {
    TORCH_CHECK_VALUE(options.size_of_head() % 2 == 0,
                      "head_size must be even for rotary positions, got ", options.size_of_head());
  }
  check_positive("norm_epsilon", options.norm_epsilon());
  check_positive("rope_theta", options.rope_theta());
  check_probability("embedding_dropout", options.embedding_dropout());
  check_probability("residual_dropout", options.residual_dropout());
  check_probability("attention_dropout", options.attention_dropout());
  TORCH_CHECK_VALUE(options.initializer_range() >= 0 && std::isfinite(options.initializer_range()),
                    "initializer_range must be a number of at least 0, got ",
                    options.initializer_range());
}

TransformerOptions gpt2_small() { return gpt2(12, 768, 12); }
TransformerOptions gpt2_medium() { return gpt2(24, 1024, 16); }
TransformerOptions gpt2_large() { return gpt2(36, 1280, 20); }
TransformerOptions gpt2_xl() { return gpt2(48, 1600, 25); }
TransformerOptions llama_7b() { return llama(32, 4096, 32, 11008); }
TransformerOptions llama_13b() { return llama(40, 5120, 40, 13824); }
TransformerOptions llama_70b() { return llama(80, 8192, 64, 28672).num_kv_heads(8); }

}  // namespace gpipe::models
