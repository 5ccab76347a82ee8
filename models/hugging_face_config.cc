#include "models/hugging_face_config.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/families/config_fields.h"
#include "models/families/families.h"

namespace gpipe::models {
namespace {

using Json = nlohmann::json;
using internal::ConfigFields;
using internal::Family;
using internal::refuse_config;

// Fields that any family may have and that do not change what is computed.
struct Harmless {
  const char* reason;
  std::vector<const char*> names;
};

const std::vector<Harmless>& harmless() {
  static const std::vector<Harmless> kHarmless = {
      {"names and versions",
       {"model_type", "architectures", "transformers_version", "_name_or_path", "name_or_path",
        "_commit_hash", "tokenizer_class", "transformers.js_config"}},
      {"the type of the weights, which their file says for itself", {"dtype", "torch_dtype"}},
      {"numbers of tokens: for generation, and for a gradient that padding has not",
       {"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"}},
      {"code of the folder's own: not run, as transformers has its own for these families",
       {"auto_map"}},
      {"how the forward is carried out, with the same result",
       {"use_cache", "return_dict", "attn_implementation", "_attn_implementation",
        "_attn_implementation_autoset", "_attn_implementation_internal",
        "_experts_implementation_internal", "chunk_size_feed_forward", "torchscript",
        "use_bfloat16"}},
      {"heads and training for other tasks",
       {"task_specific_params", "id2label", "label2id", "problem_type", "num_labels", "_num_labels",
        "finetuning_task", "prefix"}},
      {"generation",
       {"max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "num_beam_groups",
        "diversity_penalty"}}};
  return kHarmless;
}

void ignore_harmless(ConfigFields& fields) {
  for (const Harmless& each : harmless()) fields.ignore(each.names);
  fields.ignore_beginning("output_");
  fields.expect("is_encoder_decoder", {false});
  fields.expect("pruned_heads", {Json::object(), nullptr});
}

void refuse_quantized(ConfigFields& fields) {
  const Json quantized = fields.take("quantization_config");
  if (quantized.is_null()) return;
  const Json method = quantized.is_object() ? quantized.value("quant_method", Json()) : Json();
  refuse_config(absl::StrCat("the model is quantized (quantization_config",
                             method.is_string() ? ": " + method.get<std::string>() : "",
                             "), which is not computed here; take the weights from before, in "
                             "float32, float16 or bfloat16"));
}

const Family& family_of_config(ConfigFields& fields) {
  std::string type;
  fields.text("model_type", &type, "");
  const Family* const family = internal::family_of(type);
  if (family != nullptr) return *family;
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!fields.has(name)) continue;
    refuse_config(absl::StrCat("the model_type '", type, "' is a mixture of experts (", name,
                               "), which is not computed here"));
  }
  if (fields.has("text_config")) {
    refuse_config(absl::StrCat(
        "the model_type '", type, "' takes more than text (it has a text_config), which is not ",
        "computed here; save its language model alone with Python's transformers"));
  }
  refuse_config(absl::StrCat(
      "model_type must be ", internal::family_names(), ", got '", type, "'",
      fields.has("auto_map") ? ", which is a class of the folder's own (auto_map)" : ""));
}

struct Read {
  TransformerOptions options;
  std::set<std::string> used;  // fields
};

Read read(const Json& json) {
  if (!json.is_object()) refuse_config("it is not a JSON object");
  ConfigFields fields = ConfigFields::reader(json);
  const Family& family = family_of_config(fields);
  refuse_quantized(fields);
  ignore_harmless(fields);
  TransformerOptions options(family.kind);
  options.family(family.model_type);
  family.fields(fields, options);
  fields.check_all_seen();
  try {
    check(options);
  } catch (const c10::ValueError& error) {
    refuse_config(error.what_without_backtrace());
  }
  return {options, fields.used()};
}

// --- the options as lines of text

std::string text_of(const RotaryOptions& rotary, const TransformerOptions& options) {
  const int64_t original =
      rotary.original_positions() > 0 ? rotary.original_positions() : options.max_positions();
  const auto list = [](const std::vector<double>& values) { return Json(values).dump(); };
  const Json json = {static_cast<int>(rotary.kind()),
                     rotary.theta() > 0 ? rotary.theta() : options.rope_theta(), rotary.part()};
  std::string text = json.dump();
  const bool scaled = rotary.kind() != RotaryKind::kPlain;
  if (scaled) absl::StrAppend(&text, Json(rotary.factor()).dump());
  if (rotary.kind() == RotaryKind::kYarn || rotary.kind() == RotaryKind::kLongRope ||
      rotary.kind() == RotaryKind::kLlama3) {
    absl::StrAppend(&text, " ", original);
  }
  if (rotary.kind() == RotaryKind::kYarn || rotary.kind() == RotaryKind::kLongRope) {
    absl::StrAppend(&text, " ", Json(rotary.attention_factor()).dump());
  }
  if (rotary.kind() == RotaryKind::kYarn) {
    absl::StrAppend(&text,
                    Json({rotary.beta_fast(), rotary.beta_slow(), rotary.whole_range()}).dump());
  }
  if (rotary.kind() == RotaryKind::kLlama3) {
    absl::StrAppend(&text, Json({rotary.low_freq_factor(), rotary.high_freq_factor()}).dump());
  }
  if (rotary.kind() == RotaryKind::kLongRope) {
    absl::StrAppend(&text, list(rotary.short_factors()), list(rotary.long_factors()));
  }
  return text;
}

using Lines = std::vector<std::pair<std::string, std::string>>;

// The options that change what is computed or drawn.
Lines described(const TransformerOptions& options) {
  const BlockOptions& block = options.block();
  const ExpertOptions& experts = block.experts();
  const auto text = [](const auto& value) { return Json(value).dump(); };
  const auto number = [](auto value) { return std::to_string(static_cast<int>(value)); };
  Lines lines = {
      {"vocab_size", text(options.vocab_size())},
      {"max_positions", text(options.max_positions())},
      {"num_layers", text(options.num_layers())},
      {"hidden_size", text(options.hidden_size())},
      {"num_heads", text(options.num_heads())},
      {"num_kv_heads", text(options.kv_heads())},
      {"head_size", text(options.size_of_head())},
      {"intermediate_size", text(options.mlp_size())},
      {"tied", text(options.tied())},
      {"norm_epsilon", text(options.norm_epsilon())},
      {"embedding_dropout", text(options.embedding_dropout())},
      {"residual_dropout", text(options.residual_dropout())},
      {"attention_dropout", text(options.attention_dropout())},
      {"initializer_range", text(options.initializer_range())},
      {"norm", number(block.norm())},
      {"norm_place", number(block.norm_place())},
      {"head_norm", number(block.head_norm())},
      {"learned_positions", text(block.learned_positions())},
      {"qkv_bias", text(block.qkv_bias())},
      {"output_bias", text(block.output_bias())},
      {"qkv_by_head", text(block.qkv_by_head())},
      // A config gives the scale as another number, whose root is taken and may round, so only 12
      // digits are compared.
      {"attention_scale", absl::StrFormat("%.12g", block.attention_scale() > 0
                                                       ? block.attention_scale()
                                                       : std::pow(options.size_of_head(), -0.5))},
      {"attention_soft_cap", text(block.attention_soft_cap())},
      {"logit_soft_cap", text(block.logit_soft_cap())},
      {"float32_softmax", text(block.float32_softmax())},
      {"float32_rotation", text(block.float32_rotation())},
      {"gated", text(block.gated())},
      {"gate_in_up", text(block.gate_in_up())},
      {"activation", number(block.activation())},
      {"mlp_bias", text(block.mlp_bias())},
      {"scaled_embedding", text(block.scaled_embedding())},
      {"small_last_matrices", text(block.small_last_matrices())},
      {"parallel", text(block.parallel())},
      {"the count of experts", text(experts.count())},
  };
  if (experts.count() > 0) {
    lines.emplace_back("the experts per_token", text(experts.per_token()));
    lines.emplace_back("the size of experts", text(options.expert_size()));
    lines.emplace_back("the shared_size of experts", text(experts.shared_size()));
    lines.emplace_back("weights_sum_to_one of experts", text(experts.weights_sum_to_one()));
    lines.emplace_back("float32_weights of experts", text(experts.float32_weights()));
    lines.emplace_back("the balance_factor of experts", text(experts.balance_factor()));
  }
  for (int64_t i = 0; i < options.num_layers(); ++i) {
    const LayerKind& kind = block.kind_of(i);
    const std::string name = absl::StrCat("block ", i, "'s ");
    lines.emplace_back(name + "window", text(kind.window()));
    lines.emplace_back(name + "rotates", text(kind.rotates()));
    if (kind.rotates()) lines.emplace_back(name + "rotary", text_of(kind.rotary(), options));
    if (experts.count() > 0) lines.emplace_back(name + "sparse", text(kind.sparse()));
  }
  return lines;
}

std::string type_text(c10::ScalarType type) {
  switch (type) {
    case c10::kDouble:
      return "float64";
    case c10::kFloat:
      return "float32";
    case c10::kHalf:
      return "float16";
    case c10::kBFloat16:
      return "bfloat16";
    default:
      TORCH_CHECK_VALUE(false, "a transformer's parameters are of a floating-point type, got ",
                        type);
  }
}

// Throws for options that a reader would not get back from the text.
void check_says(const Json& json, const TransformerOptions& options, const Family& family) {
  Lines want = described(options), have;
  try {
    have = described(read(json).options);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK_VALUE(false, "a config.json of '", family.model_type,
                      "' cannot say these options: ", error.what());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = i < have.size() && have[i] == want[i];
    TORCH_CHECK_VALUE(same, "config.json has no field for ", want[i].first, " of a '",
                      family.model_type, "', got ", want[i].second,
                      i < have.size() && have[i].first == want[i].first
                          ? absl::StrCat(" where it would say ", have[i].second)
                          : "");
  }
}

Json json_from_options(const TransformerOptions& options, c10::ScalarType type) {
  check(options);
  const Family& family = internal::checked_family(options);
  ConfigFields fields = ConfigFields::writer();
  fields.put("architectures", Json::array({family.architecture}));
  fields.put("dtype", type_text(type));
  fields.put("model_type", family.model_type);
  // Without this field transformers takes the class's default, which may be beyond the vocabulary,
  // and the row of that token would get no gradients.
  fields.put("pad_token_id", nullptr);
  TransformerOptions sized = options;
  sized.num_kv_heads(options.kv_heads())
      .head_size(options.size_of_head())
      .intermediate_size(options.mlp_size());
  sized.block().experts().size(options.expert_size());
  family.fields(fields, sized);
  check_says(fields.json(), options, family);
  return fields.json();
}

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

Json parsed(const std::string& text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

TransformerOptions options_from_config(const std::string& json) {
  return read(parsed(json)).options;
}

std::optional<c10::ScalarType> type_from_config(const std::string& json) {
  const Json config = parsed(json);
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (!config.is_object() || !config.contains(name)) continue;
    for (const c10::ScalarType type : {c10::kDouble, c10::kFloat, c10::kHalf, c10::kBFloat16}) {
      if (config[name] == type_text(type)) return type;
    }
  }
  return std::nullopt;
}

std::string config_from_options(const TransformerOptions& options, c10::ScalarType type) {
  return text_of(json_from_options(options, type));
}

std::string config_from_options(const TransformerOptions& options,
                                std::optional<c10::ScalarType> type, const std::string& source) {
  const Json own = json_from_options(options, type.value_or(c10::kFloat));
  Json json = parsed(source);
  const Read old = read(json);
  if (old.options.family_name() != options.family_name() ||
      described(old.options) != described(options)) {
    // The text's fields that this package knows are replaced by the new ones.
    for (const std::string& name : old.used) json.erase(name);
    for (const auto& [name, value] : own.items()) {
      if (name != "dtype" && name != "pad_token_id") json[name] = value;
    }
  }
  if (type.has_value()) {
    // Version 4 of transformers calls the field torch_dtype, version 5 dtype. A text may have both.
    const bool old_name = json.contains("torch_dtype");
    if (old_name) json["torch_dtype"] = own["dtype"];
    if (!old_name || json.contains("dtype")) json["dtype"] = own["dtype"];
  }
  return text_of(json);
}

}  // namespace gpipe::models
