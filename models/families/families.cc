#include "models/families/families.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "models/families/family_weights.h"
#include "models/families/rotary_fields.h"
#include "models/families/shared_fields.h"

namespace gpipe::models::internal {
namespace {

// --- GPT-2

void gpt2_sizes(ConfigFields& fields, TransformerOptions& options) {
  fields.size("vocab_size", &options.vocab_size(), 50257);
  fields.size("n_positions", &options.max_positions(), 1024);
  fields.whole("n_layer", &options.num_layers(), 12);
  fields.size("n_embd", &options.hidden_size(), 768);
  fields.size("n_head", &options.num_heads(), 12);
  fields.size("n_inner", &options.intermediate_size(), 0, /*null=*/0);
  fields.flag("tie_word_embeddings", &options.tied(), true);
  fields.number("layer_norm_epsilon", &options.norm_epsilon(), 1e-5);
  fields.number("initializer_range", &options.initializer_range(), 0.02);
  fields.number("embd_pdrop", &options.embedding_dropout(), 0.1);
  fields.number("resid_pdrop", &options.residual_dropout(), 0.1);
  fields.number("attn_pdrop", &options.attention_dropout(), 0.1);
  fields.expect("scale_attn_weights", {true});
  fields.expect("add_cross_attention", {false});
  // These fields are for a head for other tasks.
  fields.ignore_beginning("summary_");
}

void gpt2(ConfigFields& fields, TransformerOptions& options) {
  gpt2_sizes(fields, options);
  activation(fields, options, "activation_function", "gelu_new");
  fields.expect("scale_attn_by_inverse_layer_idx", {false});
  fields.expect("reorder_and_upcast_attn", {false});
  // None of these fields changes what is computed. `n_ctx` was the size of the largest mask; the
  // others told the first scripts what to save and to compute.
  fields.ignore(
      {"n_ctx", "n_special", "predict_special_tokens", "output_past", "gradient_checkpointing"});
}

// Reads or writes StarCoder's fields. With multi_query all heads of queries share one head of keys.
void gpt_bigcode(ConfigFields& fields, TransformerOptions& options) {
  BlockOptions& block = options.block();
  gpt2_sizes(fields, options);
  activation(fields, options, "activation_function", "gelu_pytorch_tanh");
  bool multi_query = !block.qkv_by_head();
  fields.flag("multi_query", &multi_query, true);
  block.float32_softmax(true).small_last_matrices(true).qkv_by_head(!multi_query);
  options.num_kv_heads(multi_query ? 1 : options.num_heads());
  // Version 5 writes a number that follows from multi_query.
  fields.expect("num_key_value_heads", {options.num_kv_heads()});
  fields.expect("attention_softmax_in_fp32", {true});
  fields.expect("scale_attention_softmax_in_fp32", {true});
  // These fields are for an inference server and do not change what is computed.
  fields.ignore({"runner_max_sequence_length", "inference_runner", "validate_runner_input",
                 "pre_allocate_kv_cache", "max_batch_size", "max_sequence_length", "pad_key_length",
                 "n_ctx", "gradient_checkpointing"});
}

// --- Llama and what is close to it

void llama(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {32000, 4096, 11008, 32, 32, 0, 2048});
  head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  attention_bias(fields, options);
  fields.flag("mlp_bias", &options.block().mlp_bias(), false);
  rotary_fields(fields, options);
  fields.expect("rope_interleaved", {false});
  // The first field says how products were split in training, the second is about positions in the
  // first conversions, and the third only marks the model as a Llama.
  fields.ignore({"pretraining_tp", "max_sequence_length", "is_llama_config"});
}

void mistral(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {32000, 4096, 14336, 32, 32, 8, 131072}, NullKvHeads::kRefused);
  head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  window_field(fields, options, 4096);
  rotary_fields(fields, options);
}

// --- mixtures of experts

void expert_fields(ConfigFields& fields, ExpertOptions& experts, const char* count_name,
                   int64_t count, int64_t per_token) {
  fields.whole(count_name, &experts.count(), count);
  fields.size("num_experts_per_tok", &experts.per_token(), per_token);
  fields.number("router_aux_loss_coef", &experts.balance_factor(), 0.001);
}

void mixtral(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {32000, 4096, 14336, 32, 32, 8, 4096 * 32, 1e-5}, NullKvHeads::kRefused);
  head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  window_field(fields, options, 0);
  ExpertOptions& experts = options.block().experts();
  expert_fields(fields, experts, "num_local_experts", 8, 2);
  if (experts.count() < 1) refuse_config("num_local_experts must be positive");
  experts.float32_weights(true);
  fields.expect("router_jitter_noise", {0});
  RotaryDefaults rotary;
  rotary.theta = 1e6;
  rotary_fields(fields, options, rotary);
}

// Reads or writes which blocks have experts: the last of every `decoder_sparse_step` blocks, unless
// the block is listed as an exception.
void sparse_fields(ConfigFields& fields, TransformerOptions& options) {
  const BlockOptions& block = options.block();
  int64_t step = 1;
  fields.whole("decoder_sparse_step", &step, 1);
  if (!fields.reading()) {
    ConfigFields::Json dense = ConfigFields::Json::array();
    for (int64_t i = 0; i < options.num_layers(); ++i) {
      if (!block.kind_of(i).sparse()) dense.push_back(i);
    }
    fields.put("mlp_only_layers", dense);
    return;
  }
  if (step < 1) refuse_config(absl::StrCat("decoder_sparse_step must be positive, got ", step));
  const ConfigFields::Json dense = fields.take("mlp_only_layers");
  if (!dense.is_null() && !dense.is_array()) {
    refuse_config(absl::StrCat("mlp_only_layers must be a list, got ", shown(dense)));
  }
  sparse_layers(options, [&](int64_t i) {
    return (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  });
}

void qwen_expert_fields(ConfigFields& fields, TransformerOptions& options, int64_t count,
                        int64_t per_token, int64_t size) {
  ExpertOptions& experts = options.block().experts();
  // Version 5 of transformers writes the number of Qwen 3's experts under the other name.
  const bool renamed = fields.has("num_local_experts");
  expert_fields(fields, experts, renamed ? "num_local_experts" : "num_experts", count, per_token);
  if (renamed) fields.expect("num_experts", {experts.count()});
  fields.size("moe_intermediate_size", &experts.size(), size);
  fields.flag("norm_topk_prob", &experts.weights_sum_to_one(), false);
  sparse_fields(fields, options);
}

void qwen3_moe(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {151936, 2048, 6144, 24, 32, 4, 32768}, NullKvHeads::kRefused);
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  attention_bias(fields, options);
  options.block().head_norm(HeadNorm::kEachHead);
  qwen_expert_fields(fields, options, 128, 8, 768);
  const int64_t window = switched_window(fields, options, 4096);
  for (LayerKind& kind : options.block().kinds()) {
    if (fields.reading()) kind.window(window);
  }
  rotary_fields(fields, options);
  // Published files have this field, but the class of transformers does not read it.
  fields.ignore({"max_window_layers"});
}

void qwen2_moe(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {151936, 2048, 5632, 24, 16, 16, 32768}, NullKvHeads::kRefused);
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  fields.flag("qkv_bias", &options.block().qkv_bias(), true);
  fields.whole("shared_expert_intermediate_size", &options.block().experts().shared_size(), 5632);
  qwen_expert_fields(fields, options, 60, 4, 1408);
  const int64_t window = switched_window(fields, options, 4096);
  int64_t with_window = options.num_layers();
  fields.whole("max_window_layers", &with_window, 28);
  layer_type_fields(fields, options, window,
                    [&](int64_t i) { return window > 0 && i % 2 == 0 && i < with_window; });
  rotary_fields(fields, options);
}

// Gives a window to the layers from max_window_layers on.
void qwen_layers(ConfigFields& fields, TransformerOptions& options) {
  const int64_t window = switched_window(fields, options, 4096);
  int64_t first = options.num_layers();
  for (int64_t i = options.num_layers() - 1; !fields.reading() && i >= 0; --i) {
    if (options.block().kind_of(i).window() > 0) first = i;
  }
  fields.whole("max_window_layers", &first, 28);
  layer_type_fields(fields, options, window, [&](int64_t i) { return window > 0 && i >= first; });
  rotary_fields(fields, options);
}

void qwen2(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {151936, 4096, 22016, 32, 32, 32, 32768});
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  options.block().qkv_bias(true);
  qwen_layers(fields, options);
}

void qwen3(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {151936, 4096, 22016, 32, 32, 32, 32768});
  fields.size("head_dim", &options.head_size(), 128);
  activation(fields, options, "hidden_act", "silu");
  attention_bias(fields, options);
  options.block().head_norm(HeadNorm::kEachHead);
  qwen_layers(fields, options);
}

void smollm3(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {128256, 2048, 11008, 36, 16, 4, 32768, 1e-6, /*tied=*/true});
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  attention_bias(fields, options);
  fields.flag("mlp_bias", &options.block().mlp_bias(), false);
  const int64_t window = switched_window(fields, options, 0);
  rotating_field(fields, options);
  const BlockOptions rotating = options.block();
  layer_type_fields(fields, options, window,
                    [&](int64_t i) { return window > 0 && !rotating.kind_of(i).rotates(); });
  RotaryDefaults rotary;
  rotary.theta = 2e6;
  rotary_fields(fields, options, rotary);
}

void phi3(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {32064, 3072, 8192, 32, 32, 0, 4096, 1e-5});
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  fields.number("resid_pdrop", &options.residual_dropout(), 0);
  options.block().gate_in_up(true);
  window_field(fields, options, 0);
  RotaryDefaults rotary;
  rotary.may_be_partial = true;
  rotary.as_phi3 = true;
  rotary_fields(fields, options, rotary);
  fields.expect("attention_bias", {false});
  fields.expect("mlp_bias", {false});
  fields.expect("lm_head_bias", {false});
  fields.expect("full_attn_mod", {1});
  fields.expect("interpolate_factor", {1});
  // The family's classes have a field for this dropout, but no layer.
  fields.ignore({"embd_pdrop"});
}

void olmo2(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {50304, 4096, 11008, 32, 32, 0, 2048, 1e-5});
  unlisted_head_size(fields, options);
  activation(fields, options, "hidden_act", "silu");
  attention_bias(fields, options);
  options.block()
      .norm(NormKind::kRMSNormRounded)
      .norm_place(NormPlace::kBehind)
      .head_norm(HeadNorm::kAllHeads)
      .float32_rotation(true);
  rotary_fields(fields, options);
}

// --- Gemma

// Sets the options that all Gemmas have. Their hidden_size need not be a multiple of the number of
// heads.
void gemma_block(ConfigFields& fields, TransformerOptions& options) {
  fields.size("head_dim", &options.head_size(), 256);
  attention_bias(fields, options);
  options.block().norm(NormKind::kRMSNormFromOne).scaled_embedding(true);
  fields.expect("use_bidirectional_attention", {false, nullptr});
}

void gemma(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {256000, 3072, 24576, 28, 16, 16, 8192, 1e-6, /*tied=*/true},
        NullKvHeads::kRefused);
  gemma_block(fields, options);
  // The first published files say "gelu", but the models were trained with the tanh form of GELU.
  if (fields.reading() && fields.has("hidden_act") && fields.json()["hidden_act"] == "gelu") {
    fields.ignore({"hidden_act"});
    options.block().activation(Activation::kGeluTanh);
  } else {
    activation(fields, options, "hidden_act", "gelu_pytorch_tanh");
  }
  fields.expect("hidden_activation", {nullptr, "gelu_pytorch_tanh"});
  rotary_fields(fields, options);
}

// What Gemma 2 and 3 have in common: norms on both sides, a scale and caps for the products.
void later_gemma(ConfigFields& fields, TransformerOptions& options, double attention_cap,
                 double logit_cap) {
  BlockOptions& block = options.block();
  gemma_block(fields, options);
  activation(fields, options, "hidden_activation", "gelu_pytorch_tanh");
  block.norm_place(NormPlace::kBoth);
  const double scale = block.attention_scale();
  double scalar = 256;  // options that are being read are unchecked: maybe no heads
  if (!fields.reading()) {
    scalar = scale > 0 ? 1 / (scale * scale) : static_cast<double>(options.size_of_head());
  }
  fields.number("query_pre_attn_scalar", &scalar, 256);
  if (!(scalar > 0)) refuse_config("query_pre_attn_scalar must be positive");
  // transformers' class takes only whole numbers, so a scalar that is whole but for rounding is
  // written as a whole number.
  const auto rounded = static_cast<int64_t>(std::llround(std::min(scalar, 1e15)));
  if (!fields.reading() && std::abs(scalar - static_cast<double>(rounded)) < 1e-9 * scalar) {
    fields.put("query_pre_attn_scalar", rounded);
  }
  if (fields.reading()) block.attention_scale(std::pow(scalar, -0.5));
  fields.number("attn_logit_softcapping", &block.attention_soft_cap(), attention_cap, /*null=*/0);
  fields.number("final_logit_softcapping", &block.logit_soft_cap(), logit_cap, /*null=*/0);
  // The first field tells version 4 how to keep keys; the second is an older name of the
  // activation.
  fields.ignore({"cache_implementation", "hidden_act"});
}

void gemma2(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {256000, 2304, 9216, 26, 8, 4, 8192, 1e-6, /*tied=*/true},
        NullKvHeads::kRefused);
  later_gemma(fields, options, 50, 30);
  int64_t window = std::max<int64_t>(any_window(options.block()), 1);
  fields.size("sliding_window", &window, 4096);
  layer_type_fields(fields, options, window, [](int64_t i) { return i % 2 == 0; });
  rotary_fields(fields, options);
}

void gemma3(ConfigFields& fields, TransformerOptions& options) {
  sizes(fields, options, {262208, 2304, 9216, 26, 8, 4, 131072, 1e-6, /*tied=*/true},
        NullKvHeads::kRefused);
  // The class has a field for the attention's cap, and does not compute it.
  later_gemma(fields, options, 0, 0);
  if (options.block().attention_soft_cap() > 0) {
    refuse_config("attn_logit_softcapping must be null, no other is computed here");
  }
  options.block().head_norm(HeadNorm::kEachHead);
  int64_t window = std::max<int64_t>(any_window(options.block()), 1), pattern = 6;
  fields.size("sliding_window", &window, 4096);
  if (fields.reading()) fields.whole("sliding_window_pattern", &pattern, pattern);
  if (pattern < 1) refuse_config("sliding_window_pattern must be positive");
  // Version 5 writes this field beside layer_types, and never reads it.
  fields.ignore({"_sliding_window_pattern"});
  layer_type_fields(fields, options, window, [&](int64_t i) { return (i + 1) % pattern != 0; });
  two_rotary_fields(fields, options);
}

// --- with LayerNorm and rotary positions

void gpt_neox(ConfigFields& fields, TransformerOptions& options) {
  Sizes otherwise = {50432, 6144, 24576, 44, 64, 0, 2048, 1e-5};
  otherwise.epsilon_name = "layer_norm_eps";
  sizes(fields, options, otherwise);
  activation(fields, options, "hidden_act", "gelu");
  attention_bias(fields, options, /*otherwise=*/true);
  options.block().norm(NormKind::kLayerNorm).qkv_by_head(true).gated(false).mlp_bias(true);
  fields.number("hidden_dropout", &options.residual_dropout(), 0);
  options.embedding_dropout(options.residual_dropout());
  fields.flag("use_parallel_residual", &options.block().parallel(), true);
  RotaryDefaults rotary;
  rotary.may_be_partial = true;
  rotary.part = 0.25;
  rotary.theta_name = "rotary_emb_base";
  rotary.part_name = "rotary_pct";
  rotary_fields(fields, options, rotary);
  // The first field is for a head for other tasks. Version 5 writes the second, but its classes do
  // not read it.
  fields.ignore({"classifier_dropout", "is_decoder"});
}

void starcoder2(ConfigFields& fields, TransformerOptions& options) {
  Sizes otherwise = {49152, 3072, 12288, 30, 24, 2, 4096, 1e-5, /*tied=*/true, 0.018042};
  otherwise.epsilon_name = "norm_epsilon";
  sizes(fields, options, otherwise, NullKvHeads::kRefused);
  head_size(fields, options);
  activation(fields, options, "hidden_act", "gelu_pytorch_tanh");
  BlockOptions& block = options.block();
  fields.flag("use_bias", &block.qkv_bias(), true);
  block.output_bias(block.qkv_bias())
      .mlp_bias(block.qkv_bias())
      .norm(NormKind::kLayerNorm)
      .gated(false);
  fields.number("residual_dropout", &options.residual_dropout(), 0);
  fields.number("embedding_dropout", &options.embedding_dropout(), 0);
  window_field(fields, options, 0);
  rotary_fields(fields, options);
  fields.expect("mlp_type", {"default"});
  fields.expect("norm_type", {"layer_norm"});
  // These are the trainer's names of `hidden_act` and `norm_epsilon`, and its flags for computing
  // in float32.
  fields.ignore({"activation_function", "layer_norm_epsilon", "attention_softmax_in_fp32",
                 "scale_attention_softmax_in_fp32", "scale_attn_weights"});
}

void stablelm(ConfigFields& fields, TransformerOptions& options) {
  Sizes otherwise = {50304, 2560, 6912, 32, 32, 32, 4096, 1e-5};
  otherwise.epsilon_name = "layer_norm_eps";
  sizes(fields, options, otherwise, NullKvHeads::kRefused);
  activation(fields, options, "hidden_act", "silu");
  options.block().norm(NormKind::kLayerNorm);
  fields.flag("use_qkv_bias", &options.block().qkv_bias(), false);
  RotaryDefaults rotary;
  rotary.may_be_partial = true;
  rotary.part = 0.25;
  rotary_fields(fields, options, rotary);
  fields.expect("qk_layernorm", {false});
  fields.expect("use_parallel_residual", {false});
  // This is the dropout of the MLP alone, which blocks here do not have.
  fields.expect("hidden_dropout", {0});
}

}  // namespace

const std::vector<Family>& families() {
  using Kind = TransformerKind;
  static const std::vector<Family> kFamilies = {
      {"gpt2",
       "GPT2LMHeadModel",
       Kind::kGPT2,
       gpt2,
       gpt2_weights(WeightPart::kTransposed),
       "transformer.",
       {".attn.bias", ".attn.masked_bias"}},
      {"gpt_bigcode",
       "GPTBigCodeForCausalLM",
       Kind::kGPT2,
       gpt_bigcode,
       gpt2_weights(WeightPart::kAll),
       "transformer.",
       {".attn.bias", ".attn.masked_bias"}},
      {"llama", "LlamaForCausalLM", Kind::kLlama, llama, llama_weights()},
      {"mistral", "MistralForCausalLM", Kind::kLlama, mistral, llama_weights()},
      {"qwen2", "Qwen2ForCausalLM", Kind::kLlama, qwen2, llama_weights()},
      {"qwen3", "Qwen3ForCausalLM", Kind::kLlama, qwen3, llama_weights_with_head_norms()},
      {"smollm3", "SmolLM3ForCausalLM", Kind::kLlama, smollm3, llama_weights()},
      {"phi3", "Phi3ForCausalLM", Kind::kLlama, phi3, phi3_weights()},
      {"olmo2", "Olmo2ForCausalLM", Kind::kLlama, olmo2, olmo2_weights()},
      {"mixtral",
       "MixtralForCausalLM",
       Kind::kLlama,
       mixtral,
       mixtral_weights(),
       "model.",
       {".rotary_emb.inv_freq"},
       "",
       fused_mixtral_weights()},
      {"qwen2_moe",
       "Qwen2MoeForCausalLM",
       Kind::kLlama,
       qwen2_moe,
       qwen2_moe_weights(/*fused=*/false),
       "model.",
       {".rotary_emb.inv_freq"},
       "",
       qwen2_moe_weights(/*fused=*/true)},
      {"qwen3_moe",
       "Qwen3MoeForCausalLM",
       Kind::kLlama,
       qwen3_moe,
       qwen3_moe_weights(/*fused=*/false),
       "model.",
       {".rotary_emb.inv_freq"},
       "",
       qwen3_moe_weights(/*fused=*/true)},
      {"gemma", "GemmaForCausalLM", Kind::kLlama, gemma, llama_weights()},
      {"gemma2", "Gemma2ForCausalLM", Kind::kLlama, gemma2, gemma2_weights()},
      {"gemma3_text", "Gemma3ForCausalLM", Kind::kLlama, gemma3, gemma3_weights()},
      {"gpt_neox",
       "GPTNeoXForCausalLM",
       Kind::kLlama,
       gpt_neox,
       gpt_neox_weights(),
       "gpt_neox.",
       {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
       "embed_out.weight"},
      {"starcoder2", "Starcoder2ForCausalLM", Kind::kLlama, starcoder2, starcoder2_weights()},
      {"stablelm", "StableLmForCausalLM", Kind::kLlama, stablelm, llama_weights()},
  };
  return kFamilies;
}

const Family* family_of(const std::string& model_type) {
  for (const Family& family : families()) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

const Family& checked_family(const TransformerOptions& options) {
  const Family* const family = family_of(options.family_name());
  TORCH_CHECK_VALUE(family != nullptr, "family must be ", family_names(), ", got '",
                    options.family_name(), "'");
  return *family;
}

std::string family_names() {
  std::string names;
  for (size_t i = 0; i < families().size(); ++i) {
    absl::StrAppend(&names,
                    i == 0                      ? "'"
                    : i + 1 < families().size() ? ", '"
                                                : " or '",
                    families()[i].model_type, "'");
  }
  return names;
}

}  // namespace gpipe::models::internal
