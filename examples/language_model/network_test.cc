#include "examples/language_model/network.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "examples/language_model/training.h"
#include "models/transformer.h"

namespace language_model {
namespace {

const std::vector<std::string_view> kDocuments = {"In the beginning ",
                                                  "God",
                                                  " created the heaven",
                                                  " and",
                                                  " the earth.",
                                                  "\n",
                                                  "And",
                                                  " void;",
                                                  " and darkness",
                                                  " was upon",
                                                  " the face of"};
constexpr int64_t kLength = 20;

torch::nn::Sequential make_model(gpipe::models::TransformerKind kind) {
  torch::manual_seed(0);
  gpipe::models::TransformerOptions options(kind);
  options.vocab_size(kVocabulary).max_positions(kLength).hidden_size(16).num_layers(2).num_heads(2);
  options.intermediate_size(32).tied(false).packed(true).initializer_range(0.2);
  return gpipe::models::transformer(options);
}

Batch all_documents(bool packed) {
  const PackedRows rows(cut(kDocuments, kLength), kLength, packed, 0);
  return rows.validation(0, rows.validation_rows());
}

std::unique_ptr<Network> make(gpipe::models::TransformerKind kind, std::vector<int64_t> balance) {
  const gpipe::GPipe pipe(make_model(kind), gpipe::GPipeOptions(std::move(balance)).chunks(3));
  return make_pipeline(pipe, gpipe::StepOptions().weight(count_tokens), /*bfloat16=*/false);
}

// The loss is always the mean over all tokens, and its gradients are those of that mean: whether
// micro-batches have less or more padding, and rows one document or several.
TEST(Network, LossAndGradientsDependNeitherOnRowsNorOnCuts) {
  for (const auto kind :
       {gpipe::models::TransformerKind::kLlama, gpipe::models::TransformerKind::kGPT2}) {
    const auto plain = make_plain(make_model(kind), /*bfloat16=*/false);
    const double want = plain->step(all_documents(/*packed=*/false));
    for (const bool packed : {false, true}) {
      const Batch batch = all_documents(packed);
      ASSERT_EQ(batch.ids.size(0), packed ? 7 : 11);
      const auto pipeline = make(kind, {2, 5});
      EXPECT_NEAR(pipeline->evaluate(batch), want, 1e-6 * want);
      EXPECT_NEAR(pipeline->step(batch), want, 1e-6 * want);
      EXPECT_NEAR(plain->evaluate(batch), want, 1e-6 * want);
      const std::vector<at::Tensor> have = pipeline->parameters(),
                                    plain_parameters = plain->parameters();
      ASSERT_EQ(have.size(), plain_parameters.size());
      for (size_t k = 0; k < have.size(); ++k) {
        // The tolerance allows for sums in another order, in float32.
        const double largest = plain_parameters[k].grad().abs().max().item<double>();
        const double off = (have[k].grad() - plain_parameters[k].grad()).abs().max().item<double>();
        EXPECT_LE(off, 1e-5 * (largest + 1e-2)) << "parameter " << k << ", packed " << packed;
      }
    }
  }
}

TEST(Network, DrawsTheSameTokensWithAPipelineAndWithout) {
  const auto kind = gpipe::models::TransformerKind::kLlama;
  const auto plain = make_plain(make_model(kind), false), pipeline = make(kind, {3, 4});
  const at::Tensor ids = at::tensor({kEnd, int64_t{'I'}, int64_t{'n'}}, at::kLong).unsqueeze(0);
  const auto draws = [&](Network& network, double temperature) {
    const at::Generator generator = at::detail::createCPUGenerator(3);
    std::vector<int64_t> tokens;
    for (int k = 0; k < 8; ++k) {
      // draw() gets two equal rows at once. The second row's token is drawn after the first row's,
      // with the next random number.
      const std::vector<int64_t> two =
          network.draw({ids.repeat({2, 1}), at::zeros({2, 3}, at::kLong)}, temperature, generator);
      tokens.insert(tokens.end(), two.begin(), two.end());
    }
    return tokens;
  };
  const std::vector<int64_t> warm = draws(*plain, 1);
  EXPECT_EQ(draws(*pipeline, 1), warm);
  EXPECT_GT(std::set<int64_t>(warm.begin(), warm.end()).size(), 1U);
  const std::vector<int64_t> cold = draws(*plain, 0);
  EXPECT_EQ(draws(*pipeline, 0), cold);
  EXPECT_EQ(std::set<int64_t>(cold.begin(), cold.end()).size(), 1U);
}

TEST(Network, Bfloat16IsCloseAndAnother) {
  const auto kind = gpipe::models::TransformerKind::kLlama;
  const Batch batch = all_documents(true);
  const double full = make_plain(make_model(kind), false)->evaluate(batch);
  const double half = make_plain(make_model(kind), true)->evaluate(batch);
  EXPECT_NE(half, full);
  EXPECT_NEAR(half, full, 0.01 * full);
}

TEST(Optimizer, OnlyMatricesDecay) {
  for (const auto kind :
       {gpipe::models::TransformerKind::kLlama, gpipe::models::TransformerKind::kGPT2}) {
    const torch::nn::Sequential model = make_model(kind);
    const auto optimizer = make_optimizer(model->parameters(), 0.5);
    set_learning_rate(*optimizer, 0.1);
    for (at::Tensor& parameter : model->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.fill_(2);
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    optimizer->step();
    for (const auto& parameter : model->named_parameters()) {
      const bool matrix = parameter.key().find("norm") == std::string::npos &&
                          parameter.key().find("bias") == std::string::npos;
      EXPECT_FLOAT_EQ(parameter.value().min().item<float>(), matrix ? 1.9F : 2.0F)
          << parameter.key();
    }
  }
}

TEST(LearningRate, RisesAndFalls) {
  const LearningRate rate{2, 4, 24};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.5);
  EXPECT_DOUBLE_EQ(rate.at(3), 2);
  EXPECT_DOUBLE_EQ(rate.at(4), 2);
  EXPECT_DOUBLE_EQ(rate.at(14), 1.1);  // half way
  EXPECT_NEAR(rate.at(24), 0.2, 1e-12);
  EXPECT_NEAR(rate.at(1000), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ((LearningRate{2, 0, 0}.at(0)), 2);
}

}  // namespace
}  // namespace language_model
