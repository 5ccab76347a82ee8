#include "models/hugging_face_config.h"

#include <c10/util/Exception.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace gpipe::models {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& reason) {
  throw std::runtime_error("config.json: " + reason);
}

// The fields one by one; what is left at the end has not been asked for.
class Fields {
 public:
  Fields(Json json, std::string prefix) : json_(std::move(json)), prefix_(std::move(prefix)) {}

  int64_t whole(const char* name, int64_t otherwise) {
    const Json value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      mistyped(name, value, "a whole number");
    }
    return value.get<int64_t>();
  }
  double number(const char* name, double otherwise) {
    const Json value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_number()) mistyped(name, value, "a number");
    return value.get<double>();
  }
  bool flag(const char* name, bool otherwise) {
    const Json value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) mistyped(name, value, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) {
    const Json value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_string()) mistyped(name, value, "a text");
    return value.get<std::string>();
  }
  Json take(const char* name) {
    seen_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() ? Json() : *found;
  }
  // Refuses any other value.
  void expect(const char* name, bool expected) {
    if (flag(name, expected) != expected) {
      refuse(prefix_ + name + " must be " + (expected ? "true" : "false") +
             ", no other is computed here");
    }
  }
  void ignore(std::initializer_list<const char*> names) {
    seen_.insert(names.begin(), names.end());
  }
  void ignore_beginning(const std::string& beginning) {
    for (const auto& item : json_.items()) {
      if (item.key().rfind(beginning, 0) == 0) seen_.insert(item.key());
    }
  }
  // Last: refuses what nobody has asked for.
  void check_all_seen() const {
    for (const auto& item : json_.items()) {
      if (seen_.count(item.key()) > 0) continue;
      refuse("the field '" + prefix_ + item.key() +
             "' is not known here; remove it if it leaves the model's outputs as they are");
    }
  }

 private:
  [[noreturn]] void mistyped(const char* name, const Json& value, const char* expected) const {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    refuse(prefix_ + name + " must be " + expected + ", got " + text);
  }

  Json json_;
  std::string prefix_;
  std::set<std::string> seen_;
};

// What names things, or tells generation and training what to do.
void ignore_harmless(Fields& fields) {
  fields.ignore({"model_type",
                 "architectures",
                 "transformers_version",
                 "dtype",
                 "torch_dtype",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "sep_token_id",
                 "_name_or_path",
                 "task_specific_params",
                 "return_dict",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "num_labels",
                 "attn_implementation",
                 "_attn_implementation",
                 "_attn_implementation_autoset",
                 "is_encoder_decoder",
                 "chunk_size_feed_forward",
                 "tokenizer_class",
                 "finetuning_task",
                 "prefix"});
  fields.ignore_beginning("output_");
}

TransformerOptions gpt2(Fields& fields) {
  TransformerOptions options(TransformerKind::kGPT2);
  options.vocab_size(fields.whole("vocab_size", 50257))
      .max_positions(fields.whole("n_positions", 1024))
      .num_layers(fields.whole("n_layer", 12))
      .hidden_size(fields.whole("n_embd", 768))
      .num_heads(fields.whole("n_head", 12))
      .intermediate_size(fields.whole("n_inner", 0))
      .tied(fields.flag("tie_word_embeddings", true))
      .norm_epsilon(fields.number("layer_norm_epsilon", 1e-5))
      .initializer_range(fields.number("initializer_range", 0.02))
      .embedding_dropout(fields.number("embd_pdrop", 0.1))
      .residual_dropout(fields.number("resid_pdrop", 0.1))
      .attention_dropout(fields.number("attn_pdrop", 0.1));
  const std::string activation = fields.text("activation_function", "gelu_new");
  // Two names for the same function.
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    refuse("activation_function must be 'gelu_new', got '" + activation + "'");
  }
  fields.expect("scale_attn_weights", true);
  fields.expect("scale_attn_by_inverse_layer_idx", false);
  fields.expect("reorder_and_upcast_attn", false);
  fields.expect("add_cross_attention", false);
  fields.ignore({"n_ctx", "gradient_checkpointing"});
  fields.ignore_beginning("summary_");
  return options;
}

// The base of rotary positions, in either form.
double rope_theta(Fields& fields) {
  constexpr double kTheta = 10000;
  const double theta = fields.number("rope_theta", kTheta);
  if (!fields.take("rope_scaling").is_null()) {
    refuse("rope_scaling must be null: scaled rotary positions are not computed here");
  }
  const Json parameters = fields.take("rope_parameters");
  if (parameters.is_null()) return theta;
  if (!parameters.is_object()) refuse("rope_parameters must be an object");
  Fields inner(parameters, "rope_parameters.");
  const std::string type = inner.text("rope_type", "default");
  if (type != "default") {
    refuse("rope_parameters.rope_type must be 'default', got '" + type +
           "': scaled rotary positions are not computed here");
  }
  const double result = inner.number("rope_theta", theta);
  inner.check_all_seen();
  return result;
}

TransformerOptions llama(Fields& fields) {
  TransformerOptions options(TransformerKind::kLlama);
  options.vocab_size(fields.whole("vocab_size", 32000))
      .max_positions(fields.whole("max_position_embeddings", 2048))
      .num_layers(fields.whole("num_hidden_layers", 32))
      .hidden_size(fields.whole("hidden_size", 4096))
      .num_heads(fields.whole("num_attention_heads", 32))
      .num_kv_heads(fields.whole("num_key_value_heads", 0))
      .head_size(fields.whole("head_dim", 0))
      .intermediate_size(fields.whole("intermediate_size", 11008))
      .tied(fields.flag("tie_word_embeddings", false))
      .norm_epsilon(fields.number("rms_norm_eps", 1e-6))
      .initializer_range(fields.number("initializer_range", 0.02))
      .attention_dropout(fields.number("attention_dropout", 0))
      .rope_theta(rope_theta(fields));
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") refuse("hidden_act must be 'silu', got '" + activation + "'");
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);
  fields.ignore({"pretraining_tp"});
  return options;
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

}  // namespace

TransformerOptions options_from_config(const std::string& json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) refuse("it is no JSON object");
  Fields fields(parsed, "");
  const std::string type = fields.text("model_type", "");
  if (type != "gpt2" && type != "llama") {
    refuse("model_type must be 'gpt2' or 'llama', got '" + type + "'");
  }
  ignore_harmless(fields);
  TransformerOptions options = type == "gpt2" ? gpt2(fields) : llama(fields);
  fields.check_all_seen();
  try {
    check(options);
  } catch (const c10::ValueError& error) {
    refuse(error.what_without_backtrace());
  }
  return options;
}

std::string config_from_options(const TransformerOptions& options, c10::ScalarType type) {
  check(options);
  Json json = {{"dtype", type_text(type)},
               {"initializer_range", options.initializer_range()},
               {"model_type", to_text(options.kind())},
               {"tie_word_embeddings", options.tied()},
               {"vocab_size", options.vocab_size()}};
  if (options.kind() == TransformerKind::kGPT2) {
    json.update({{"activation_function", "gelu_new"},
                 {"architectures", {"GPT2LMHeadModel"}},
                 {"attn_pdrop", options.attention_dropout()},
                 {"embd_pdrop", options.embedding_dropout()},
                 {"layer_norm_epsilon", options.norm_epsilon()},
                 {"n_embd", options.hidden_size()},
                 {"n_head", options.num_heads()},
                 {"n_inner", options.mlp_size()},
                 {"n_layer", options.num_layers()},
                 {"n_positions", options.max_positions()},
                 {"resid_pdrop", options.residual_dropout()}});
  } else {
    TORCH_CHECK_VALUE(options.embedding_dropout() == 0 && options.residual_dropout() == 0,
                      "config.json has no field for embedding_dropout and residual_dropout of a "
                      "Llama, got ",
                      options.embedding_dropout(), " and ", options.residual_dropout());
    json.update(
        {{"architectures", {"LlamaForCausalLM"}},
         {"attention_bias", false},
         {"attention_dropout", options.attention_dropout()},
         {"head_dim", options.size_of_head()},
         {"hidden_act", "silu"},
         {"hidden_size", options.hidden_size()},
         {"intermediate_size", options.mlp_size()},
         {"max_position_embeddings", options.max_positions()},
         {"mlp_bias", false},
         {"num_attention_heads", options.num_heads()},
         {"num_hidden_layers", options.num_layers()},
         {"num_key_value_heads", options.kv_heads()},
         {"rms_norm_eps", options.norm_epsilon()},
         // For version 5 and for version 4.
         {"rope_parameters", {{"rope_theta", options.rope_theta()}, {"rope_type", "default"}}},
         {"rope_theta", options.rope_theta()}});
  }
  return json.dump(2) + "\n";
}

}  // namespace gpipe::models
