#include "models/families/shared_fields.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace gpipe::models::internal {

void sizes(ConfigFields& fields, TransformerOptions& options, const Sizes& otherwise,
           NullKvHeads null_kv_heads) {
  fields.size("vocab_size", &options.vocab_size(), otherwise.vocabulary);
  fields.size("hidden_size", &options.hidden_size(), otherwise.hidden);
  fields.size("intermediate_size", &options.intermediate_size(), otherwise.inner);
  fields.whole("num_hidden_layers", &options.num_layers(), otherwise.layers);
  fields.size("num_attention_heads", &options.num_heads(), otherwise.heads);
  if (null_kv_heads == NullKvHeads::kAsHeads) {
    fields.size("num_key_value_heads", &options.num_kv_heads(), otherwise.kv_heads, /*null=*/0);
  } else {
    fields.size("num_key_value_heads", &options.num_kv_heads(), otherwise.kv_heads);
  }
  fields.size("max_position_embeddings", &options.max_positions(), otherwise.positions);
  fields.number(otherwise.epsilon_name, &options.norm_epsilon(), otherwise.epsilon);
  fields.number("initializer_range", &options.initializer_range(), otherwise.deviation);
  fields.flag("tie_word_embeddings", &options.tied(), otherwise.tied);
  fields.number("attention_dropout", &options.attention_dropout(), 0);
}

void head_size(ConfigFields& fields, TransformerOptions& options) {
  fields.size("head_dim", &options.head_size(), 0, /*null=*/0);
}

void unlisted_head_size(ConfigFields& fields, TransformerOptions& options) {
  // The options that are being read are not checked yet, and may have no heads.
  if (fields.reading() ? fields.has("head_dim")
                       : options.size_of_head() * options.num_heads() != options.hidden_size()) {
    fields.size("head_dim", &options.head_size(), 0);
  }
}

void activation(ConfigFields& fields, TransformerOptions& options, const char* name,
                const std::string& otherwise) {
  static const std::map<std::string, Activation> kNames = {
      {"gelu", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu}};
  Activation& value = options.block().activation();
  std::string text = otherwise;
  if (!fields.reading() && kNames.at(text) != value) {
    for (auto each = kNames.rbegin(); each != kNames.rend(); ++each) {
      if (each->second == value) text = each->first;
    }
  }
  fields.text(name, &text, otherwise);
  const auto found = kNames.find(text);
  if (found == kNames.end()) {
    refuse_config(
        absl::StrCat(name, " must be 'gelu', 'gelu_new', 'relu' or 'silu', got '", text, "'"));
  }
  value = found->second;
}

void attention_bias(ConfigFields& fields, TransformerOptions& options, bool otherwise) {
  BlockOptions& block = options.block();
  fields.flag("attention_bias", &block.qkv_bias(), otherwise);
  block.output_bias(block.qkv_bias());
}

int64_t any_window(const BlockOptions& block) {
  int64_t window = 0;
  for (const LayerKind& kind : block.kinds()) {
    if (kind.window() > 0) window = kind.window();
  }
  return window;
}

int64_t switched_window(ConfigFields& fields, const TransformerOptions& options,
                        int64_t otherwise) {
  int64_t window = any_window(options.block());
  bool used = window > 0;
  fields.flag("use_sliding_window", &used, false);
  // If no window is used, transformers writes null, 0, or the file's former value.
  if (!used && fields.reading()) fields.take("sliding_window");
  if (used || !fields.reading()) fields.size("sliding_window", &window, otherwise, /*null=*/0);
  return used ? window : 0;
}

}  // namespace gpipe::models::internal
