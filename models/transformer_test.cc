#include "models/transformer.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "meta/meta_scope.h"
#include "models/blocks/transformer_layers.h"
#include "models/testing/checks.h"
#include "models/testing/pipelines.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TransformerKind kKinds[] = {TransformerKind::kGPT2, TransformerKind::kLlama};

TransformerOptions small(TransformerKind kind) {
  TransformerOptions options(kind);
  options.vocab_size(23).max_positions(10).num_layers(2).hidden_size(16).num_heads(4);
  if (kind == TransformerKind::kLlama) options.num_kv_heads(2).intermediate_size(20);
  return options;
}

TransformerOptions parallel(TransformerOptions options) {
  options.block().parallel(true);
  return options;
}

at::Tensor random_ids(int64_t rows, int64_t tokens, const TransformerOptions& options) {
  return at::randint(options.vocab_size(), {rows, tokens}, at::kLong);
}

// --- sizes

int64_t closed_formula(const TransformerOptions& options) {
  const int64_t v = options.vocab_size(), e = options.hidden_size(), f = options.mlp_size();
  const int64_t queries = options.num_heads() * options.size_of_head(),
                keys = options.kv_heads() * options.size_of_head();
  if (options.kind() == TransformerKind::kGPT2) {
    const int64_t block = (3 * e * e + 3 * e) + (e * e + e) + (2 * e * f + f + e) + 4 * e;
    return v * e + options.max_positions() * e + options.num_layers() * block + 2 * e +
           (options.tied() ? 0 : v * e);
  }
  const int64_t block = e * (queries + 2 * keys) + queries * e + 3 * e * f + 2 * e;
  return v * e + options.num_layers() * block + e + (options.tied() ? 0 : v * e);
}

struct Published {
  const char* name;
  TransformerOptions options;
  int64_t parameters;
};

TEST(TransformerTest, HasExactlyTheKnownSizes) {
  // The published numbers of parameters, and that of Llama's 70 billion if heads of keys were not
  // shared.
  const Published all[] = {
      {"gpt2", gpt2_small(), 124439808},
      {"gpt2-medium", gpt2_medium(), 354823168},
      {"gpt2-large", gpt2_large(), 774030080},
      {"gpt2-xl", gpt2_xl(), 1557611200},
      {"gpt2, untied", gpt2_small().tied(false), 124439808 + 50257 * 768},
      {"llama 7b", llama_7b(), 6738415616},
      {"llama 13b", llama_13b(), 13015864320},
      {"llama 70b", llama_70b(), 68976648192},
      {"llama 70b, tied", llama_70b().tied(true), 68976648192 - 32000 * 8192},
      {"llama 70b, own keys", llama_70b().num_kv_heads(0),
       68976648192 + 80LL * 2 * 56 * 128 * 8192},
  };
  for (const Published& published : all) {
    SCOPED_TRACE(published.name);
    MetaScope meta;
    const testing::Counts counts = testing::count(transformer(published.options));
    EXPECT_EQ(counts.parameters, published.parameters);
    EXPECT_EQ(counts.parameters, closed_formula(published.options));
    EXPECT_EQ(counts.layers, 2 * published.options.num_layers() + 3);
    EXPECT_EQ(counts.buffer_tensors, 0) << "cosines and sines are not to be saved";
  }
}

TEST(TransformerTest, OddSizesFollowTheFormulaToo) {
  for (const TransformerKind kind : kKinds) {
    for (const bool tied : {false, true}) {
      TransformerOptions options = small(kind).tied(tied).intermediate_size(13).vocab_size(7);
      if (kind == TransformerKind::kLlama) options.head_size(6).num_kv_heads(1);
      EXPECT_EQ(testing::count(transformer(options)).parameters, closed_formula(options));
    }
  }
}

TEST(TransformerTest, NamesItsLayersAndParameters) {
  EXPECT_THAT(transformer(small(TransformerKind::kGPT2).num_layers(1))->named_parameters().keys(),
              ElementsAre("embedding.tokens.weight", "embedding.positions.weight",
                          "block0_attention.norm.weight", "block0_attention.norm.bias",
                          "block0_attention.qkv.weight", "block0_attention.qkv.bias",
                          "block0_attention.output.weight", "block0_attention.output.bias",
                          "block0_mlp.norm.weight", "block0_mlp.norm.bias", "block0_mlp.up.weight",
                          "block0_mlp.up.bias", "block0_mlp.down.weight", "block0_mlp.down.bias",
                          "norm.weight", "norm.bias"));
  EXPECT_THAT(
      transformer(small(TransformerKind::kLlama).num_layers(1))->named_parameters().keys(),
      ElementsAre("embedding.tokens.weight", "block0_attention.norm.weight",
                  "block0_attention.qkv.weight", "block0_attention.output.weight",
                  "block0_mlp.norm.weight", "block0_mlp.gate.weight", "block0_mlp.up.weight",
                  "block0_mlp.down.weight", "norm.weight", "head.weight"));
  EXPECT_THAT(transformer(small(TransformerKind::kLlama))->named_children().keys(),
              ElementsAre("embedding", "block0_attention", "block0_mlp", "block1_attention",
                          "block1_mlp", "norm", "head"));
}

// --- values

TEST(TransformerTest, IsInitializedAsPublished) {
  const TransformerOptions options =
      TransformerOptions(TransformerKind::kGPT2).num_layers(8).hidden_size(128).num_heads(2);
  const auto parameters = transformer(options)->named_parameters();
  // The standard deviation of 16,384 draws is typically off by half a percent, so 3 % are allowed.
  const auto expect_deviation = [&](const std::string& name, double expected) {
    EXPECT_NEAR(parameters[name].std().item<double>(), expected, 0.03 * expected) << name;
  };
  expect_deviation("embedding.tokens.weight", 0.02);
  expect_deviation("embedding.positions.weight", 0.02);
  expect_deviation("block7_attention.qkv.weight", 0.02);
  expect_deviation("block7_attention.output.weight", 0.02 / 4);
  expect_deviation("block0_mlp.up.weight", 0.02);
  expect_deviation("block0_mlp.down.weight", 0.02 / 4);
  EXPECT_EQ(parameters["block3_mlp.up.bias"].abs().max().item<double>(), 0);
  EXPECT_EQ(parameters["norm.weight"].min().item<double>(), 1);

  const auto llama =
      transformer(small(TransformerKind::kLlama).hidden_size(128).initializer_range(3))
          ->named_parameters();
  for (const std::string name : {"block1_mlp.down.weight", "head.weight"}) {
    EXPECT_NEAR(llama[name].std().item<double>(), 3, 0.15) << name;
  }
}

TEST(TransformerTest, LogitsDependOnNoLaterToken) {
  for (const TransformerKind kind : kKinds) {
    for (const bool fused : {false, true}) {
      const TransformerOptions options = small(kind).fused_attention(fused);
      auto model = transformer(options);
      const at::NoGradGuard no_grad;
      const at::Tensor ids = random_ids(2, 9, options);
      const at::Tensor logits = model->forward(ids);
      EXPECT_EQ(logits.sizes(), (at::IntArrayRef{2, 9, 23}));
      at::Tensor changed = ids.clone();
      changed.select(1, 5).add_(1).remainder_(23);
      const at::Tensor others = model->forward(changed);
      EXPECT_THAT(others.slice(1, 0, 5).contiguous(),
                  EqualsBitwise(logits.slice(1, 0, 5).contiguous()));
      // All logits from the changed token on depend on it.
      EXPECT_GT((others - logits).abs().amax(-1).slice(1, 5).min().item<double>(), 0);
    }
  }
}

TEST(TransformerTest, FusedAttentionGivesTheSameUpToRounding) {
  for (const TransformerKind kind : kKinds) {
    at::Tensor logits[2], gradients[2];
    for (const bool fused : {false, true}) {
      torch::manual_seed(3);
      auto model = transformer(small(kind).fused_attention(fused).initializer_range(0.3));
      const at::Tensor ids = random_ids(3, 10, small(kind));
      logits[fused] = model->forward(ids);
      logits[fused].logsumexp(-1).mean().backward();
      gradients[fused] = model->parameters()[0].grad();
    }
    // The tolerance allows for the rounding of values of order one in float32.
    EXPECT_LT((logits[0] - logits[1]).abs().max().item<double>(), 2e-5);
    EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 2e-5);
  }
}

TEST(TransformerTest, DropsInTrainingOnly) {
  const auto outputs_differ = [](const TransformerOptions& options, bool train) {
    auto model = transformer(options);
    model->train(train);
    const at::NoGradGuard no_grad;
    const at::Tensor ids = random_ids(2, 8, options);
    return !model->forward(ids).equal(model->forward(ids));
  };
  for (const TransformerKind kind : kKinds) {
    for (const bool fused : {false, true}) {
      const TransformerOptions plain = small(kind).fused_attention(fused);
      EXPECT_FALSE(outputs_differ(plain, true));
      for (const TransformerOptions& options : {TransformerOptions(plain).embedding_dropout(0.4),
                                                TransformerOptions(plain).residual_dropout(0.4),
                                                TransformerOptions(plain).attention_dropout(0.4)}) {
        EXPECT_TRUE(outputs_differ(options, true));
        EXPECT_FALSE(outputs_differ(options, false));
      }
    }
  }
}

TEST(TransformerTest, TheNormOfLlamaIsInFloat32) {
  auto options = small(TransformerKind::kLlama).hidden_size(8);
  internal::TokenNorm norm(options);
  norm->to(at::kDouble);
  const at::Tensor input = at::randn({5, 8}, at::kDouble);
  const at::Tensor want = input / (input.pow(2).mean(-1, true) + options.norm_epsilon()).sqrt();
  const double apart = (norm->forward(input) - want).abs().max().item<double>();
  EXPECT_GT(apart, 1e-10);
  EXPECT_LT(apart, 1e-6);
  // The squares of 3000 overflow in float16, so the norm must compute them in float32.
  norm->to(at::kHalf);
  const at::Tensor large = at::full({1, 8}, 3000, at::kHalf);
  EXPECT_THAT(norm->forward(large).to(at::kFloat), EqualsBitwise(at::ones({1, 8})));
}

// --- tied heads

TEST(TransformerTest, ATiedHeadHasTheEmbeddingsMatrix) {
  for (const TransformerKind kind : kKinds) {
    const TransformerOptions options = small(kind).tied(true);
    auto model = transformer(options);
    // In float32 the head would round differently from the definition below.
    model->to(at::kDouble);
    const at::Tensor matrix = model->named_parameters()["embedding.tokens.weight"];
    EXPECT_EQ(model->named_parameters().find("head.weight"), nullptr);
    const at::Tensor hidden = at::randn({2, 3, 16}, at::kDouble);
    auto* head = model->ptr(model->size() - 1)->as<internal::TokenHead>();
    ASSERT_NE(head, nullptr);
    EXPECT_TRUE(head->weight.is_same(matrix));
    EXPECT_LT((head->forward(hidden) - hidden.matmul(matrix.t())).abs().max().item<double>(),
              1e-14);
    // The head's input is on another device than the tied matrix, as could happen with several
    // devices. On meta, no other check would notice the wrong device.
    try {
      head->forward(hidden.to(at::kMeta));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("the head runs on meta, but is tied to an embedding on cpu"));
    }
    try {
      model->clone();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot be cloned"));
    }
  }
}

TEST(TransformerTest, UntiedOnesCanBeCloned) {
  for (const TransformerKind kind : kKinds) {
    const TransformerOptions options = small(kind).tied(false);
    testing::expect_clone_works(transformer(options), random_ids(2, 4, options));
    testing::expect_clone_works(transformer(parallel(options)), random_ids(2, 4, options));
  }
}

// --- pipelines

class TransformerPipeline : public ::testing::TestWithParam<TransformerOptions> {};

TEST_P(TransformerPipeline, IsThePlainModelBitForBit) {
  const TransformerOptions& options = GetParam();
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::cross_entropy_loss(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
  };
  // The seven rows are cut into four micro-batches, so the last one is short.
  testing::expect_every_table_equals_plain_model(
      [&] { return transformer(options); }, {random_ids(7, 6, options)}, random_ids(7, 6, options),
      [&](const torch::nn::Sequential&) { return loss; });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TransformerPipeline,
    ::testing::Values(small(TransformerKind::kGPT2), small(TransformerKind::kLlama),
                      parallel(small(TransformerKind::kGPT2)),
                      small(TransformerKind::kLlama).tied(true).fused_attention(true),
                      small(TransformerKind::kGPT2)
                          .tied(false)
                          .embedding_dropout(0.1)
                          .residual_dropout(0.1)
                          .attention_dropout(0.1)));

// --- several documents in a row

// The document numbers of two rows of ten tokens. The first row has three documents and padding,
// the second one two documents.
at::Tensor documents() {
  return at::tensor({0, 0, 0, 1, 2, 2, 2, 2, 9, 9, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3}, at::kLong)
      .view({2, 10});
}

// The row, the first token and the length of each document (or padding) in documents().
constexpr int64_t kDocuments[][3] = {{0, 0, 3}, {0, 3, 1}, {0, 4, 4},
                                     {0, 8, 2}, {1, 0, 5}, {1, 5, 5}};

TEST(PackedTransformer, GivesWhatEachDocumentGivesAlone) {
  for (const TransformerKind kind : kKinds) {
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(::testing::Message() << to_text(kind) << ", fused " << fused);
      const auto make = [&](bool packed) {
        torch::manual_seed(2);
        auto model =
            transformer(small(kind).packed(packed).fused_attention(fused).initializer_range(0.3));
        model->to(at::kDouble);
        return model;
      };
      torch::nn::Sequential packed = make(true), alone = make(false);
      EXPECT_EQ(packed->named_parameters().keys(), alone->named_parameters().keys());
      const at::Tensor ids = random_ids(2, 10, small(kind));
      const at::Tensor logits = packed->forward(Tensors{ids, documents()});
      ASSERT_EQ(logits.sizes(), (at::IntArrayRef{2, 10, 23}));
      logits.logsumexp(-1).sum().backward();
      // The gradients are of order one; Llama's norms and angles are computed in float32.
      const double tolerance = kind == TransformerKind::kGPT2 ? 1e-12 : 1e-5;
      for (const auto& [row, first, length] : kDocuments) {
        const at::Tensor own =
            alone->forward(ids.slice(0, row, row + 1).slice(1, first, first + length));
        own.logsumexp(-1).sum().backward();
        EXPECT_LE((own[0] - logits[row].slice(0, first, first + length)).abs().max().item<double>(),
                  tolerance);
      }
      const auto expected = alone->named_parameters();
      for (const auto& parameter : packed->named_parameters()) {
        const at::Tensor& want = expected[parameter.key()].grad();
        EXPECT_LE((parameter.value().grad() - want).abs().max().item<double>(),
                  tolerance * (1 + want.abs().max().item<double>()))
            << parameter.key();
      }
    }
  }
}

TEST(PackedTransformer, CanBeCloned) {
  auto model = transformer(small(TransformerKind::kLlama).packed(true));
  torch::nn::Sequential clone(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  const at::NoGradGuard no_grad;
  const Tensors inputs = {random_ids(2, 10, small(TransformerKind::kLlama)), documents()};
  const at::Tensor want = model->forward(inputs);
  EXPECT_THAT(clone->forward(inputs), EqualsBitwise(want));
  for (at::Tensor& parameter : model->parameters()) parameter.zero_();
  EXPECT_THAT(clone->forward(inputs), EqualsBitwise(want)) << "it has tensors of its own";
}

TEST(PackedTransformer, MistakesAreNamed) {
  auto model = transformer(small(TransformerKind::kGPT2).packed(true));
  const at::Tensor ids = random_ids(2, 10, small(TransformerKind::kGPT2));
  for (const auto& [inputs, part] : std::vector<std::pair<Tensors, std::string>>{
           {{ids}, "takes two tensors"},
           {{ids, documents(), ids}, "got 3"},
           {{ids, documents().slice(1, 1)},
            "of the token ids' shape [2, 10], got Long of shape [2, 9]"},
           {{ids, documents().to(at::kFloat)}, "got Float"}}) {
    try {
      model->forward(inputs);
      ADD_FAILURE() << "nothing was thrown: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(PackedTransformer, IsThePlainModelBitForBitInPipelines) {
  for (const TransformerKind kind : kKinds) {
    const TransformerOptions options = small(kind).num_layers(1).packed(true);
    const auto loss = [](const Tensors& outputs, const Tensors& targets) {
      return at::cross_entropy_loss(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
    };
    testing::expect_every_table_equals_plain_model(
        [&] { return transformer(options); },
        {random_ids(4, 10, options), at::cat({documents(), documents().flip(0)})},
        random_ids(4, 10, options), [&](const torch::nn::Sequential&) { return loss; });
  }
}

}  // namespace
}  // namespace gpipe::models
