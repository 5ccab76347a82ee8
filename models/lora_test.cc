#include "models/lora.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "command/files.h"
#include "gpipe/testing/bitwise.h"
#include "models/adaptable_linear.h"
#include "models/blocks/transformer_layers.h"
#include "models/hugging_face.h"
#include "models/testing/pipelines.h"
#include "models/transformer.h"
#include "safetensors/safetensors.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

TransformerOptions small(TransformerKind kind) {
  TransformerOptions options(kind);
  options.vocab_size(23).max_positions(10).num_layers(1).hidden_size(16).num_heads(4);
  if (kind == TransformerKind::kLlama) options.num_kv_heads(2).intermediate_size(20);
  return options;
}

// Fills adapters with values that change the outputs.
void fill(const torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {
    if (parameter.key().find("lora") == std::string::npos) continue;
    if (parameter.key().find("magnitude") != std::string::npos) {
      parameter.value() *= 1.1;
    } else {
      parameter.value().normal_(0, 0.3);
    }
  }
}

torch::nn::Sequential adapted(const TransformerOptions& options, const LoraOptions& lora,
                              at::ScalarType type = at::kFloat) {
  torch::nn::Sequential model = transformer(options);
  model->to(type);
  add_lora(*model, options, lora);
  fill(*model);
  return model;
}

at::Tensor random_ids(const TransformerOptions& options) {
  return at::randint(options.vocab_size(), {7, 6}, at::kLong);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

std::string scratch() {
  static int count = 0;
  const fs::path path = fs::path(::testing::TempDir()) / ("lora" + std::to_string(count++));
  fs::create_directories(path);
  return path.string();
}

struct OwnImpl : torch::nn::Module {
  OwnImpl() {
    in = register_module("in", AdaptableLinear(4, 6));
    out = register_module("out", torch::nn::Linear(6, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(in->forward(x).tanh()); }
  AdaptableLinear in{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Own);

TEST(Lora, IsThePlainModelBitForBitBehindAFrozenEmbedding) {
  const struct {
    TransformerOptions options;
    LoraOptions lora;
    at::ScalarType type = at::kFloat;
  } cases[] = {{small(TransformerKind::kLlama),
                LoraOptions({"q_proj", "v_proj", "down_proj"}).rank(2).alpha(5).dropout(0.2)},
               {small(TransformerKind::kGPT2),
                LoraOptions({"all-linear"}).rank(3).rank_stabilized(true).dora(true)},
               {small(TransformerKind::kGPT2).tied(true),
                LoraOptions({"c_fc"}).rank(2).dropout(0.3).dora(true), at::kBFloat16}};
  for (const auto& each : cases) {
    const auto loss = [](const Tensors& outputs, const Tensors& targets) {
      return at::cross_entropy_loss(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
    };
    testing::expect_every_table_equals_plain_model(
        [&] { return adapted(each.options, each.lora, each.type); }, {random_ids(each.options)},
        random_ids(each.options),
        [&](torch::nn::Sequential model) {
          // Each trained parameter gets a gradient in the plain loop, so that the comparison below
          // cannot be empty.
          const at::Tensor ids = random_ids(each.options);
          loss({model->forward(ids)}, {ids}).backward();
          for (auto& parameter : model->named_parameters()) {
            const bool adapter = parameter.key().find("lora") != std::string::npos;
            EXPECT_EQ(parameter.value().requires_grad(), adapter) << parameter.key();
            at::Tensor& gradient = parameter.value().mutable_grad();
            EXPECT_EQ(gradient.defined() && gradient.abs().max().item<double>() > 0, adapter)
                << parameter.key();
            gradient = at::Tensor();
          }
          return loss;
        });
  }
}

TEST(Lora, ComputesTheFormulas) {
  const auto expect_close = [](const at::Tensor& have, const at::Tensor& want) {
    EXPECT_LE((have - want).abs().max().item<double>(), 1e-13);
  };
  for (const bool dora : {false, true}) {
    for (const bool stabilized : {false, true}) {
      AdaptableLinear layer(torch::nn::LinearOptions(6, 5));
      layer->to(at::kDouble);
      torch::nn::Sequential model(layer);
      add_lora(*model, LoraOptions({"0"}).rank(4).alpha(3).dora(dora).rank_stabilized(stabilized));
      const at::Tensor x = at::randn({2, 3, 6}, at::kDouble);
      expect_close(layer->forward(x), at::linear(x, layer->weight, layer->bias));
      fill(*model);
      const internal::LowRankAdapter adapter = layer->adapters().at(0);
      at::Tensor weight =
          layer->weight + at::mm(adapter->B, adapter->A) * (stabilized ? 3 / 2.0 : 3 / 4.0);
      if (dora) {
        weight = adapter->magnitude.view({-1, 1}) * weight / weight.square().sum(1, true).sqrt();
      }
      const at::Tensor want = at::linear(x, weight, layer->bias);
      expect_close(layer->forward(x), want);
      layer->eval();
      merge_lora(*model);
      expect_close(layer->forward(x), want);
      merge_and_unload_lora(*model);
      expect_close(layer->weight, weight);
    }
  }
}

TEST(Lora, DrawsAndSumsOfAPackedLayerAreThoseOfItsParts) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  torch::nn::Sequential model = transformer(options);
  EXPECT_THAT(add_lora(*model, options, LoraOptions({"q_proj", "v_proj"}).rank(2)),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"));
  fill(*model);
  const auto parameters = model->named_parameters();
  const std::string qkv = "block0_attention.qkv.";
  EXPECT_EQ(parameters[qkv + "lora0.B"].sizes(), (std::vector<int64_t>{16, 2}));
  EXPECT_EQ(parameters[qkv + "lora1.B"].sizes(), (std::vector<int64_t>{8, 2}));
  const auto attention = std::dynamic_pointer_cast<internal::AttentionLayerImpl>(model->ptr(1));
  const at::Tensor x = at::randn({2, 3, 16});
  const at::Tensor have = attention->qkv->forward(x);
  const at::Tensor base = at::linear(x, attention->qkv->weight);
  // The keys have no adapter, so the adapters leave them as they are.
  EXPECT_THAT(have.slice(-1, 16, 24).contiguous(),
              EqualsBitwise(base.slice(-1, 16, 24).contiguous()));
  for (const auto& [begin, end] : {std::pair(0, 16), std::pair(24, 32)}) {
    EXPECT_GT((have - base).slice(-1, begin, end).abs().max().item<double>(), 0.01);
  }
}

TEST(Lora, UnmergedIsTheBaseBitForBit) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    torch::nn::Sequential model =
        adapted(options, LoraOptions({"all-linear"}).rank(2).dora(type == at::kFloat), type);
    EXPECT_EQ(model->named_parameters()["block0_mlp.up.lora.A"].scalar_type(), at::kFloat);
    model->eval();
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : model->parameters()) before.push_back(parameter.clone());
    const at::Tensor ids = random_ids(options), want = model->forward(ids);
    merge_lora(*model);
    merge_lora(*model);                                       // changes nothing
    EXPECT_THAT(model->parameters(), EqualsBitwise(before));  // what a checkpoint has
    EXPECT_LE((model->forward(ids) - want).abs().max().item<double>(),
              type == at::kFloat ? 1e-5 : 0.1);
    model->train();
    EXPECT_THAT(error_of([&] { model->forward(ids); }), HasSubstr("call unmerge_lora before"));
    unmerge_lora(*model);
    EXPECT_THAT(model->parameters(), EqualsBitwise(before));
  }
}

TEST(Lora, MergedItIsAPlainModelThatCanBeSaved) {
  const TransformerOptions options = small(TransformerKind::kGPT2);
  torch::nn::Sequential model = adapted(options, LoraOptions({"c_attn", "c_proj"}));
  EXPECT_THAT(error_of([&] { save_hugging_face(scratch(), options, *model); }),
              HasSubstr("call merge_and_unload_lora"));
  model->eval();
  const at::Tensor ids = random_ids(options);
  merge_lora(*model);
  const at::Tensor merged = model->forward(ids);
  merge_and_unload_lora(*model);
  EXPECT_THAT(model->forward(ids), EqualsBitwise(merged));
  const std::string folder = scratch();
  save_hugging_face(folder, options, *model);
  torch::nn::Sequential back = transformer(options);
  load_hugging_face(folder, options, *back);
  EXPECT_THAT(back->forward(ids), EqualsBitwise(merged));
}

TEST(Lora, AMergedModelRefusesWhatWouldBeAnotherModel) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  torch::nn::Sequential model = adapted(options, LoraOptions({"q_proj", "down_proj"}).dora(true));
  model->eval();
  merge_lora(*model);
  const at::Tensor ids = random_ids(options), want = model->forward(ids);
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(clone->forward(ids), EqualsBitwise(want));
  }
  at::Tensor norm =
      model->named_parameters()["block0_attention.norm.weight"].set_requires_grad(true);
  EXPECT_THAT(error_of([&] { model->forward(ids); }), HasSubstr("would get no gradient"));
  norm.set_requires_grad(false);
  EXPECT_THAT(model->forward(ids), EqualsBitwise(want));

  std::stringstream file;
  torch::save(model, file);
  EXPECT_THAT(error_of([&] { torch::load(model, file); }), HasSubstr("before torch::load"));
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["block0_mlp.down.weight"] *= 2;
  }
  EXPECT_THAT(error_of([&] { model->forward(ids); }), HasSubstr("have changed since merge_lora"));
  unmerge_lora(*model);
  merge_lora(*model);
  EXPECT_FALSE(at::equal(model->forward(ids), want));
}

TEST(Lora, AMergedModelMayBeConverted) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  torch::nn::Sequential model = adapted(options, LoraOptions({"q_proj"}));
  model->eval();
  const at::Tensor ids = random_ids(options), want = model->forward(ids);
  merge_lora(*model);
  model->to(at::kDouble);
  EXPECT_TRUE(at::allclose(model->forward(ids), want.to(at::kDouble), 1e-4, 1e-5));
}

TEST(Lora, ACloneHasAdaptersOfItsOwn) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  torch::nn::Sequential model = adapted(options, LoraOptions({"q_proj", "up_proj"}).dora(true));
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_THAT(clone->parameters(), EqualsBitwise(model->parameters()));
  const at::Tensor ids = random_ids(options), want = model->forward(ids);
  EXPECT_THAT(clone->forward(ids), EqualsBitwise(want));
  unload_lora(*clone);
  EXPECT_FALSE(at::equal(clone->forward(ids), want));
  EXPECT_THAT(model->forward(ids), EqualsBitwise(want));
}

TEST(Lora, PatternsAndNamesAreThoseOfPeft) {
  const TransformerOptions options = small(TransformerKind::kLlama).num_layers(3);
  const auto names = [&](const LoraOptions& lora) {
    return add_lora(*transformer(options), options, lora);
  };
  EXPECT_THAT(names(LoraOptions().target_pattern("model[.]layers[.][12][.].*[.](k|o)_proj")),
              ElementsAre("model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.o_proj",
                          "model.layers.2.self_attn.k_proj", "model.layers.2.self_attn.o_proj"));
  EXPECT_THAT(names(LoraOptions({"model.layers.2.mlp.up_proj"})),
              ElementsAre("model.layers.2.mlp.up_proj"));
  EXPECT_THAT(names(LoraOptions({"o_proj"}).exclude_modules({"layers.0.self_attn.o_proj"})),
              ElementsAre("model.layers.1.self_attn.o_proj", "model.layers.2.self_attn.o_proj"));
  EXPECT_EQ(names(LoraOptions({"all-linear"})).size(), 3 * 7);
}

// In Python neither routers nor the matrices of experts are linear layers, so "all-linear" leaves
// them out.
TEST(Lora, AllLinearLayersOfAMixtureOfExpertsAreThoseOfAttention) {
  TransformerOptions options = small(TransformerKind::kLlama).family("mixtral");
  options.block().experts().count(3).per_token(2);
  EXPECT_THAT(add_lora(*transformer(options), options, LoraOptions({"all-linear"})),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                          "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj"));
  EXPECT_THAT(error_of([&] { add_lora(*transformer(options), options, LoraOptions({"gate"})); }),
              HasSubstr("which takes no adapter"));
}

TEST(Lora, WrongOptionsChangeNothing) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  torch::nn::Sequential model = transformer(options);
  Own own;
  const auto theirs = [&](const LoraOptions& lora) {
    return error_of([&] { add_lora(*model, options, lora); });
  };
  const auto ours = [&](const LoraOptions& lora) {
    return error_of([&] { add_lora(*own, lora); });
  };
  EXPECT_THAT(theirs(LoraOptions({"q_proj", "q_porj"})),
              AllOf(HasSubstr("no layer has the name 'q_porj'"),
                    HasSubstr("'model.layers.0.self_attn.q_proj'")));
  EXPECT_THAT(theirs(LoraOptions({"lm_head"})), HasSubstr("which takes no adapter"));
  EXPECT_THAT(theirs(LoraOptions({"embed_tokens"})), HasSubstr("which takes no adapter"));
  EXPECT_THAT(theirs(LoraOptions().target_pattern("no")), HasSubstr("target_pattern is 'no'"));
  EXPECT_THAT(theirs(LoraOptions().target_pattern("(")), HasSubstr("not a valid regular"));
  EXPECT_THAT(theirs(LoraOptions({"all-linear", "q_proj"})),
              HasSubstr("'all-linear' stands for all layers: give it alone"));
  EXPECT_THAT(theirs(LoraOptions({"all-linear"}).exclude_modules({"down_proj", "dwon_proj"})),
              AllOf(HasSubstr("no layer has the name 'dwon_proj'"), HasSubstr("exclude_modules")));
  EXPECT_THAT(theirs(LoraOptions({"o_proj"}).exclude_modules({"layers.0.self_attn.o_proj"})),
              HasSubstr("exclude_modules are 'layers.0.self_attn.o_proj'"));
  EXPECT_THAT(theirs({}), HasSubstr("got neither"));
  EXPECT_THAT(theirs(LoraOptions({"q_proj"}).target_pattern("x")), HasSubstr("got both"));
  EXPECT_THAT(theirs(LoraOptions({"q_proj"}).rank(0)), HasSubstr("rank must be at least 1"));
  EXPECT_THAT(theirs(LoraOptions({"q_proj"}).dropout(1)), HasSubstr("dropout must be"));
  EXPECT_THAT(theirs(LoraOptions({"q_proj"}).alpha(NAN)), HasSubstr("alpha must be finite"));
  EXPECT_THAT(ours(LoraOptions({"in", "out"})),
              AllOf(HasSubstr("'out' is a torch::nn::LinearImpl"), HasSubstr("AdaptableLinear")));
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());
  for (const at::Tensor& parameter : own->parameters()) EXPECT_TRUE(parameter.requires_grad());
  EXPECT_EQ(ours(LoraOptions({"in"})), "no error");
  EXPECT_THAT(ours(LoraOptions({"in"})), HasSubstr("has an adapter already"));
}

TEST(LoraFiles, AreReadAsTheyWereWritten) {
  const TransformerOptions options = small(TransformerKind::kGPT2);
  const LoraOptions lora =
      LoraOptions({"c_attn", "c_fc"}).rank(3).alpha(2.5).dora(true).rank_stabilized(true);
  const auto lora_of = [&](std::vector<std::string> names) {
    return LoraOptions(lora).target_modules(std::move(names));
  };
  torch::manual_seed(1);
  torch::nn::Sequential model = adapted(options, lora);
  const std::string folder = scratch();
  save_lora(folder, *model, lora, "gpt2");
  torch::manual_seed(1);
  torch::nn::Sequential back = transformer(options);
  EXPECT_EQ(load_lora(folder, *back, options).alpha(), 2.5);
  EXPECT_THAT(back->parameters(), EqualsBitwise(model->parameters()));
  const safetensors::File file(folder + "/adapter_model.safetensors");
  const std::string c_fc = "base_model.model.transformer.h.0.mlp.c_fc.";
  EXPECT_THAT(file.header().tensors.at(c_fc + "lora_A.weight").shape, ElementsAre(3, 16));
  EXPECT_THAT(file.header().tensors.at(c_fc + "lora_B.weight").shape, ElementsAre(64, 3));
  EXPECT_THAT(file.header().tensors.at(c_fc + "lora_magnitude_vector").shape, ElementsAre(64));
  EXPECT_THAT(error_of([&] { save_lora(folder, *model, LoraOptions(lora).rank(4), ""); }),
              HasSubstr("has rank 3"));
  // These options leave out "c_fc", which has an adapter: the file adapter_config.json would not
  // fit the tensors.
  EXPECT_THAT(error_of([&] {
                save_lora(folder, *model, lora_of({"c_attn", "c_proj"}), "");
              }),
              HasSubstr("'transformer.h.0.mlp.c_fc' has an adapter, and the options leave it out"));
  EXPECT_THAT(error_of([&] { save_lora(folder, *transformer(options), lora, ""); }),
              HasSubstr("no adapters"));
}

TEST(Lora, ALayerWithTwoNamesHasOneAdapter) {
  AdaptableLinear layer(4, 4);
  torch::nn::Sequential model(layer, torch::nn::Tanh(), layer);
  EXPECT_THAT(add_lora(*model, LoraOptions({"all-linear"}).rank(2)), ElementsAre("0"));
  EXPECT_EQ(layer->adapters().size(), 1);
  EXPECT_EQ(model->forward(at::ones({3, 4})).sizes(), (std::vector<int64_t>{3, 4}));
  const std::string folder = scratch();
  save_lora(folder, *model, LoraOptions({"all-linear"}).rank(2), "");
  EXPECT_EQ(safetensors::File(folder + "/adapter_model.safetensors").header().tensors.size(), 2);
  // The layer can be named by either of its two names.
  unload_lora(*model);
  EXPECT_THAT(add_lora(*model, LoraOptions({"2"}).rank(2)), ElementsAre("2"));
}

TEST(LoraFiles, WhatIsNotKnownIsRefused) {
  const TransformerOptions options = small(TransformerKind::kLlama);
  const LoraOptions lora({"q_proj"});
  const std::string folder = scratch();
  save_lora(folder, *adapted(options, lora), lora, "");
  const std::string path = folder + "/adapter_config.json";
  const auto config = nlohmann::json::parse(command::read_file(path));
  torch::nn::Sequential model = transformer(options);
  const auto with = [&](const char* name, const nlohmann::json& value) {
    auto changed = config;
    changed[name] = value;
    command::write_file_atomically(path, changed.dump());
    return error_of([&] { load_lora(folder, *model, options); });
  };
  EXPECT_THAT(with("modules_to_save", {"lm_head"}), HasSubstr("\"modules_to_save\""));
  EXPECT_THAT(with("bias", "all"), HasSubstr("\"bias\""));
  EXPECT_THAT(with("rank_pattern", {{"q_proj", 4}}), HasSubstr("\"rank_pattern\""));
  EXPECT_THAT(with("of_tomorrow", 1), HasSubstr("\"of_tomorrow\""));
  EXPECT_THAT(with("peft_type", "IA3"), HasSubstr("peft_type must be"));
  EXPECT_THAT(with("init_lora_weights", "pissa"), HasSubstr("has changed the base's weights"));
  EXPECT_THAT(with("r", "many"), HasSubstr("r cannot be \"many\""));
  EXPECT_THAT(with("r", 8.5), HasSubstr("r cannot be 8.5"));
  EXPECT_THAT(with("r", true), HasSubstr("r cannot be true"));
  EXPECT_THAT(with("lora_alpha", true), HasSubstr("lora_alpha cannot be true"));
  EXPECT_THAT(with("use_rslora", 1), HasSubstr("use_rslora cannot be 1"));
  EXPECT_THAT(with("r", 4), HasSubstr("the model asks for [4, 16]"));
  EXPECT_THAT(with("target_modules", {"q_proj", "k_proj"}), HasSubstr("it has no '"));
  EXPECT_THAT(with("target_modules", {"k_proj"}), HasSubstr("k_proj"));
  EXPECT_THAT(with("use_dora", true), HasSubstr("lora_magnitude_vector"));
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());
  EXPECT_EQ(with("rank_pattern", nlohmann::json::object()), "no error");
  EXPECT_THAT(error_of([&] { read_lora(scratch()); }), HasSubstr("cannot read"));
}

}  // namespace
}  // namespace gpipe::models
