#include "models/hugging_face_config.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::models {
namespace {

using ::testing::HasSubstr;

TEST(HuggingFaceConfig, WhatIsLeftOutHasTheirDefaults) {
  const TransformerOptions gpt2 = options_from_config(R"({"model_type": "gpt2"})");
  EXPECT_EQ(gpt2.kind(), TransformerKind::kGPT2);
  EXPECT_EQ(gpt2.vocab_size(), 50257);
  EXPECT_EQ(gpt2.max_positions(), 1024);
  EXPECT_EQ(gpt2.num_layers(), 12);
  EXPECT_EQ(gpt2.hidden_size(), 768);
  EXPECT_EQ(gpt2.num_heads(), 12);
  EXPECT_EQ(gpt2.mlp_size(), 4 * 768);
  EXPECT_TRUE(gpt2.tied());
  EXPECT_EQ(gpt2.norm_epsilon(), 1e-5);
  EXPECT_EQ(gpt2.embedding_dropout(), 0.1);
  EXPECT_EQ(gpt2.residual_dropout(), 0.1);
  EXPECT_EQ(gpt2.attention_dropout(), 0.1);

  const TransformerOptions llama = options_from_config(R"({"model_type": "llama"})");
  EXPECT_EQ(llama.kind(), TransformerKind::kLlama);
  EXPECT_EQ(llama.vocab_size(), 32000);
  EXPECT_EQ(llama.max_positions(), 2048);
  EXPECT_EQ(llama.num_layers(), 32);
  EXPECT_EQ(llama.hidden_size(), 4096);
  EXPECT_EQ(llama.kv_heads(), 32);
  EXPECT_EQ(llama.size_of_head(), 128);
  EXPECT_EQ(llama.mlp_size(), 11008);
  EXPECT_FALSE(llama.tied());
  EXPECT_EQ(llama.norm_epsilon(), 1e-6);
  EXPECT_EQ(llama.rope_theta(), 10000);
  EXPECT_EQ(llama.attention_dropout(), 0);
}

TEST(HuggingFaceConfig, EveryFieldIsTaken) {
  const TransformerOptions gpt2 = options_from_config(
      R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 12, "n_layer": 3, "n_embd": 8,
          "n_head": 2, "n_inner": 5, "tie_word_embeddings": false, "layer_norm_epsilon": 0.25,
          "initializer_range": 0.5, "embd_pdrop": 0.2, "resid_pdrop": 0.3, "attn_pdrop": 0,
          "activation_function": "gelu_pytorch_tanh", "n_ctx": 12, "summary_type": "cls_index",
          "output_attentions": false, "torch_dtype": "float32"})");
  EXPECT_EQ(gpt2.vocab_size(), 11);
  EXPECT_EQ(gpt2.max_positions(), 12);
  EXPECT_EQ(gpt2.num_layers(), 3);
  EXPECT_EQ(gpt2.hidden_size(), 8);
  EXPECT_EQ(gpt2.num_heads(), 2);
  EXPECT_EQ(gpt2.mlp_size(), 5);
  EXPECT_FALSE(gpt2.tied());
  EXPECT_EQ(gpt2.norm_epsilon(), 0.25);
  EXPECT_EQ(gpt2.initializer_range(), 0.5);
  EXPECT_EQ(gpt2.embedding_dropout(), 0.2);
  EXPECT_EQ(gpt2.residual_dropout(), 0.3);
  EXPECT_EQ(gpt2.attention_dropout(), 0);
  const TransformerOptions llama = options_from_config(
      R"({"model_type": "llama", "vocab_size": 11, "max_position_embeddings": 12,
          "num_hidden_layers": 3, "hidden_size": 8, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 5,
          "tie_word_embeddings": true, "rms_norm_eps": 0.25, "initializer_range": 0.5,
          "attention_dropout": 0.1, "rope_theta": 500, "rope_scaling": null, "pretraining_tp": 1})");
  EXPECT_EQ(llama.vocab_size(), 11);
  EXPECT_EQ(llama.max_positions(), 12);
  EXPECT_EQ(llama.num_layers(), 3);
  EXPECT_EQ(llama.hidden_size(), 8);
  EXPECT_EQ(llama.num_heads(), 4);
  EXPECT_EQ(llama.kv_heads(), 2);
  EXPECT_EQ(llama.size_of_head(), 6);
  EXPECT_EQ(llama.mlp_size(), 5);
  EXPECT_TRUE(llama.tied());
  EXPECT_EQ(llama.norm_epsilon(), 0.25);
  EXPECT_EQ(llama.initializer_range(), 0.5);
  EXPECT_EQ(llama.attention_dropout(), 0.1);
  EXPECT_EQ(llama.rope_theta(), 500);  // the form of version 4
  EXPECT_EQ(options_from_config(R"({"model_type": "llama",
                "rope_parameters": {"rope_type": "default", "rope_theta": 7.5}})")
                .rope_theta(),
            7.5);
}

TEST(HuggingFaceConfig, WhatIsWrittenIsReadAgain) {
  for (const TransformerOptions& options :
       {gpt2_xl().attention_dropout(0.5).residual_dropout(0.25).embedding_dropout(0.125),
        gpt2_small().tied(false).intermediate_size(7), llama_70b().rope_theta(1e6),
        llama_7b().tied(true).head_size(64).norm_epsilon(1e-6).attention_dropout(0.5)}) {
    const std::string text = config_from_options(options, c10::kBFloat16);
    EXPECT_THAT(text, HasSubstr(R"("dtype": "bfloat16")"));
    const TransformerOptions again = options_from_config(text);
    EXPECT_EQ(config_from_options(again, c10::kBFloat16), text);
    EXPECT_EQ(again.kv_heads(), options.kv_heads());
    EXPECT_EQ(again.size_of_head(), options.size_of_head());
    EXPECT_EQ(again.rope_theta(), options.rope_theta());
    EXPECT_EQ(again.norm_epsilon(), options.norm_epsilon());
    EXPECT_EQ(again.tied(), options.tied());
    EXPECT_EQ(again.residual_dropout(), options.residual_dropout());
  }
  EXPECT_THROW(config_from_options(gpt2_small(), c10::kLong), c10::ValueError);
  EXPECT_THROW(config_from_options(gpt2_small().num_heads(7), c10::kFloat), c10::ValueError);
  EXPECT_THROW(config_from_options(llama_7b().residual_dropout(0.1), c10::kFloat), c10::ValueError);
}

struct Mistake {
  std::string fields;
  std::string part;  // of the error's message
};

void expect_refused(const std::string& text, const std::string& part) {
  SCOPED_TRACE(text);
  try {
    options_from_config(text);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json: "));
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(HuggingFaceConfig, WhatIsNotComputedIsRefused) {
  expect_refused("", "it is not a JSON object");
  expect_refused("[1]", "it is not a JSON object");
  expect_refused("{}", "or 'stablelm', got ''");
  expect_refused(R"({"model_type": "deepseek_v2", "n_routed_experts": 64})",
                 "'deepseek_v2' is a mixture of experts (n_routed_experts)");
  expect_refused(R"({"model_type": "mixtral", "num_local_experts": 0})",
                 "num_local_experts must be positive");
  expect_refused(R"({"model_type": "mixtral", "num_experts_per_tok": 9})",
                 "the experts per_token must be from 1 to 8, got 9");
  expect_refused(R"({"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 8})",
                 "num_experts must be 8, no other is computed here, got 4");
  expect_refused(R"({"model_type": "qwen2_moe", "mlp_only_layers": 3})",
                 "mlp_only_layers must be a list, got 3");
  expect_refused(R"({"model_type": "phi-msft", "auto_map": {}})",
                 "got 'phi-msft', which is a class of the folder's own (auto_map)");
  expect_refused(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})",
                 "the model_type 'gemma3' takes more than text (it has a text_config)");
  expect_refused(R"({"model_type": 7})", "model_type must be a text, got 7");
  for (const Mistake& mistake : std::vector<Mistake>{
           {R"("activation_function": "tanh")",
            "activation_function must be 'gelu', 'gelu_new', 'relu' or 'silu', got 'tanh'"},
           {R"("activation_function": null)", "activation_function must be a text, got null"},
           {R"("scale_attn_weights": false)", "scale_attn_weights must be true"},
           {R"("scale_attn_by_inverse_layer_idx": true)", "must be false"},
           {R"("reorder_and_upcast_attn": true)", "reorder_and_upcast_attn must be false"},
           {R"("add_cross_attention": true)", "add_cross_attention must be false"},
           {R"("n_embd": 9, "n_head": 2)", "hidden_size must be a multiple of num_heads"},
           {R"("n_embd": "768")", "n_embd must be a whole number, got \"768\""},
           {R"("n_embd": 768.5)", "n_embd must be a whole number, got 768.5"},
           {R"("n_layer": 18446744073709551615)", "n_layer must be a whole number"},
           {R"("n_layer": -1)", "num_layers must be from 0"},
           {R"("attn_pdrop": "none")", "attn_pdrop must be a number"},
           {R"("attn_pdrop": 1.5)", "attention_dropout must be"},
           {R"("tie_word_embeddings": 1)", "tie_word_embeddings must be true or false"},
           {R"("quantization_config": {"bits": 4})", "the model is quantized"},
           {R"("quantization_config": {"quant_method": "gptq"})", "quantization_config: gptq"},
           {R"("vocab_size": null)", "vocab_size must be a whole number, got null"},
           {R"("n_inner": 0)", "n_inner must be a positive whole number or null, got 0"},
           {R"("hidden_size": 8)", "the field 'hidden_size' is not known"},
       }) {
    expect_refused(R"({"model_type": "gpt2", )" + mistake.fields + "}", mistake.part);
  }
  for (const Mistake& mistake : std::vector<Mistake>{
           {R"("hidden_act": "quick_gelu")", "got 'quick_gelu'"},
           {R"("rope_scaling": {"type": "clex", "max_factor": 16})",
            "rope_scaling: rotary positions of the type 'clex' are not computed here"},
           {R"("rope_scaling": {"type": "linear"})", "rope_scaling has no factor"},
           {R"("rope_parameters": {"rope_type": "llama3", "factor": 8})",
            "rope_parameters has no low_freq_factor"},
           {R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})",
            "partial_rotary_factor must be 1"},
           {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor must be 1"},
           {R"("rope_parameters": {"rope_type": "linear", "factor": 2, "more": 1})",
            "'rope_parameters.more' is not known"},
           {R"("rope_interleaved": true)", "rope_interleaved must be false"},
           {R"("rope_parameters": 3)", "rope_parameters must be an object"},
           {R"("rope_theta": 0)", "rope_theta must be a positive number"},
           {R"("num_key_value_heads": 3)", "num_heads must be a multiple of num_kv_heads"},
           {R"("head_dim": 5)", "head_size must be even"},
           {R"("head_dim": 0)", "head_dim must be a positive whole number or null, got 0"},
           {R"("intermediate_size": 0)",
            "intermediate_size must be a positive whole number, got 0"},
           {R"("num_key_value_heads": 0)", "num_key_value_heads must be a positive whole number"},
           {R"("rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2})",
            "rope_theta must be above 1 for positions of the type yarn, got 1"},
           {R"("sliding_window": 4096)", "the field 'sliding_window' is not known"},
       }) {
    expect_refused(R"({"model_type": "llama", )" + mistake.fields + "}", mistake.part);
  }
}

// 0 stands for a size that follows from other options, so a field of 0 would be read as another
// size.
TEST(HuggingFaceConfig, SizesOfNothingAreRefusedInEveryFamily) {
  for (const std::string type :
       {"mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "mixtral", "qwen2_moe",
        "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gpt_neox", "starcoder2", "stablelm"}) {
    SCOPED_TRACE(type);
    for (const std::string field : {"intermediate_size", "num_key_value_heads", "hidden_size"}) {
      for (const char* value : {"0", "-4"}) {
        expect_refused(R"({")" + field + "\": " + value + R"(, "model_type": ")" + type + "\"}",
                       (field + " must be a positive whole number").c_str());
      }
    }
  }
  for (const std::string type : {"qwen2", "qwen3", "gemma", "gemma3_text", "phi3"}) {
    expect_refused(R"({"head_dim": 0, "model_type": ")" + type + "\"}",
                   "head_dim must be a positive");
  }
  for (const std::string type : {"mistral", "mixtral", "phi3", "starcoder2", "gemma2"}) {
    expect_refused(R"({"sliding_window": -4, "model_type": ")" + type + "\"}",
                   "sliding_window must be a positive whole number");
  }
  expect_refused(
      R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": -4, "max_window_layers": 0})",
      "sliding_window must be a positive whole number");
}

TEST(HuggingFaceConfig, GemmaWithTheDefaultScaleIsSaved) {
  for (const char* type : {"gemma2", "gemma3_text"}) {
    TransformerOptions options =
        options_from_config(std::string(R"({"head_dim": 24, "model_type": ")") + type + "\"}");
    options.block().attention_scale(0);
    const std::string written = config_from_options(options, c10::kFloat);
    EXPECT_EQ(nlohmann::json::parse(written)["query_pre_attn_scalar"], 24);
    EXPECT_DOUBLE_EQ(options_from_config(written).block().attention_scale(), std::pow(24, -0.5));
    // The config has 1 / scale^2. A scale for which that is not a whole number is written, too.
    options.block().attention_scale(0.3);
    EXPECT_NEAR(
        options_from_config(config_from_options(options, c10::kFloat)).block().attention_scale(),
        0.3, 1e-12);
  }
}

TEST(HuggingFaceConfig, KindsOfLayersAreRead) {
  const TransformerOptions gemma =
      options_from_config(R"({"model_type": "gemma3_text", "num_hidden_layers": 7})");
  std::vector<int64_t> windows;
  std::vector<double> bases;
  for (int64_t block = 0; block < 7; ++block) {
    const LayerKind& kind = gemma.block().kind_of(block);
    windows.push_back(kind.window());
    bases.push_back(kind.rotary().theta() > 0 ? kind.rotary().theta() : gemma.rope_theta());
  }
  EXPECT_EQ(windows, (std::vector<int64_t>{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(bases, (std::vector<double>{1e4, 1e4, 1e4, 1e4, 1e4, 1e6, 1e4}));
  // If sliding_window is absent, the window is the family's default; if it is null, there is no
  // window.
  EXPECT_EQ(options_from_config(R"({"model_type": "mistral"})").block().kind_of(0).window(), 4096);
  EXPECT_EQ(options_from_config(R"({"model_type": "mistral", "sliding_window": null})")
                .block()
                .kind_of(0)
                .window(),
            0);
  const TransformerOptions smollm =
      options_from_config(R"({"model_type": "smollm3", "num_hidden_layers": 5})");
  for (int64_t block = 0; block < 5; ++block) {
    EXPECT_EQ(smollm.block().kind_of(block).rotates(), block != 3);
  }
}

// A config without heads is refused before the size of a head is computed, which would divide by 0.
TEST(HuggingFaceConfig, NoHeadsAreRefused) {
  for (const std::string type : {"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2",
                                 "gemma", "gemma2", "gemma3_text", "starcoder2", "stablelm"}) {
    SCOPED_TRACE(type);
    expect_refused(R"({"num_attention_heads": 0, "model_type": ")" + type + "\"}", "heads");
  }
}

TEST(HuggingFaceConfig, ABaseOfNothingIsRefused) {
  expect_refused(R"({"model_type": "gemma3_text", "rope_local_base_freq": 0})",
                 "rope_theta must be a positive number, got 0");
}

TEST(HuggingFaceConfig, AnotherFamilysTextIsReadAgain) {
  for (const char* text : {
           R"({"model_type": "mistral", "sliding_window": 7})",
           R"({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 3})",
           R"({"model_type": "qwen3", "attention_bias": true})",
           R"({"model_type": "smollm3", "no_rope_layer_interval": 3})",
           R"({"model_type": "phi3", "partial_rotary_factor": 0.75})",
           R"({"model_type": "olmo2"})",
           R"({"model_type": "gemma", "hidden_act": "gelu"})",
           R"({"model_type": "gemma2", "query_pre_attn_scalar": 144})",
           R"({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8}})",
           R"({"model_type": "gpt_neox", "use_parallel_residual": false})",
           R"({"model_type": "gpt_neox"})",
           R"({"model_type": "mixtral", "sliding_window": 7})",
           R"({"model_type": "qwen2_moe", "use_sliding_window": true, "decoder_sparse_step": 2})",
           R"({"model_type": "qwen3_moe", "mlp_only_layers": [3, 5], "num_local_experts": 9})",
           R"({"model_type": "qwen2_moe", "sliding_window": 0})",
           R"({"model_type": "gpt_bigcode", "multi_query": false})",
           R"({"model_type": "starcoder2", "use_bias": false})",
           R"({"model_type": "stablelm", "use_qkv_bias": true})",
           R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
           R"({"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 4}})",
       }) {
    SCOPED_TRACE(text);
    const TransformerOptions options = options_from_config(text);
    const std::string written = config_from_options(options, c10::kFloat);
    EXPECT_EQ(config_from_options(options_from_config(written), c10::kFloat), written);
  }
}

TEST(HuggingFaceConfig, OptionsThatAFamilyHasNoFieldForAreRefused) {
  TransformerOptions options = options_from_config(R"({"model_type": "mistral"})");
  options.block().qkv_bias(true);
  EXPECT_THAT([&] { config_from_options(options, c10::kFloat); },
              ::testing::ThrowsMessage<c10::ValueError>(
                  HasSubstr("has no field for qkv_bias of a 'mistral', got true")));
  EXPECT_THAT([&] { config_from_options(llama_7b().family("mamba"), c10::kFloat); },
              ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("got 'mamba'")));
}

TEST(HuggingFaceConfig, WhatWasReadIsWrittenBack) {
  const std::string source =
      R"({"model_type": "llama", "eos_token_id": [1, 2], "torch_dtype": "bfloat16",
          "rope_scaling": {"type": "linear", "factor": 2.0}, "_name_or_path": "a"})";
  const TransformerOptions options = options_from_config(source);
  const auto json = nlohmann::json::parse(source);
  EXPECT_EQ(nlohmann::json::parse(config_from_options(options, std::nullopt, source)), json);
  // If the text has both names of the type, both are set.
  auto both = json;
  both["dtype"] = "bfloat16";
  const auto typed = nlohmann::json::parse(config_from_options(options, c10::kFloat, both.dump()));
  EXPECT_EQ(typed["dtype"], "float32");
  EXPECT_EQ(typed["torch_dtype"], "float32");
  // If the text is written for another type and another model, the fields that do not depend on
  // these stay.
  auto want = json;
  want["torch_dtype"] = "float32";
  EXPECT_EQ(nlohmann::json::parse(config_from_options(options, c10::kFloat, source)), want);
  const auto changed = nlohmann::json::parse(
      config_from_options(TransformerOptions(options).num_layers(3), std::nullopt, source));
  EXPECT_EQ(changed["num_hidden_layers"], 3);
  EXPECT_EQ(changed["eos_token_id"], json["eos_token_id"]);
  EXPECT_EQ(changed["torch_dtype"], "bfloat16");
  EXPECT_EQ(options_from_config(changed.dump()).block().kind_of(0).rotary().factor(), 2);
}

}  // namespace
}  // namespace gpipe::models
