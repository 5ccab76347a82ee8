#include "models/blocks/experts.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "meta/meta_kernels.h"
#include "meta/meta_scope.h"
#include "models/balance_loss.h"
#include "models/blocks/transformer_layers.h"
#include "models/head_loss.h"
#include "models/testing/pipelines.h"
#include "models/transformer.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using internal::Routing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor smooth(const at::Tensor& x) { return at::silu(x); }

struct Case {
  at::Tensor tokens, gate_up, down;

  Case(int64_t count, int64_t experts) {
    tokens = at::randn({count, 6}, at::kDouble).requires_grad_();
    gate_up = at::randn({experts, 10, 6}, at::kDouble).requires_grad_();
    down = at::randn({experts, 6, 5}, at::kDouble).requires_grad_();
  }
  at::Tensor through(const Routing& routing) const {
    return internal::through_experts(tokens, routing, gate_up, down, false, smooth);
  }
};

// The mixture by its definition, token by token.
at::Tensor by_tokens(const Case& test_case, const Routing& routing) {
  std::vector<at::Tensor> results;
  for (int64_t i = 0; i < test_case.tokens.size(0); ++i) {
    at::Tensor sum = at::zeros({6}, at::kDouble);
    for (int64_t k = 0; k < routing.experts.size(1); ++k) {
      const int64_t expert = routing.experts[i][k].item<int64_t>();
      const auto halves = at::mv(test_case.gate_up[expert], test_case.tokens[i]).chunk(2);
      sum = sum +
            routing.weights[i][k] * at::mv(test_case.down[expert], smooth(halves[0]) * halves[1]);
    }
    results.push_back(sum);
  }
  return at::stack(results);
}

TEST(Experts, EachTokenGetsTheSumOfItsExperts) {
  const Case test_case(9, 5);
  // Experts 0 and 3 get no tokens.
  const at::Tensor chosen = at::tensor({1, 2, 4}, at::kLong);
  const at::Tensor first = at::arange(9).remainder(3), second = (first + 1).remainder(3);
  const Routing routing = {
      chosen.index_select(0, at::stack({first, second}, 1).flatten()).view({9, 2}),
      at::rand({9, 2}, at::kDouble).requires_grad_()};
  const std::vector<at::Tensor> leaves = {test_case.tokens, test_case.gate_up, test_case.down,
                                          routing.weights};
  const at::Tensor have = test_case.through(routing), want = by_tokens(test_case, routing);
  EXPECT_LE((have - want).abs().max().item<double>(), 1e-12);
  const auto gradients = torch::autograd::grad({have.pow(2).sum()}, leaves);
  const auto expected = torch::autograd::grad({want.pow(2).sum()}, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_LE((gradients[i] - expected[i]).abs().max().item<double>(),
              1e-12 * (1 + expected[i].abs().max().item<double>()));
  }
  for (const int64_t none : {0, 3}) {
    EXPECT_THAT(gradients[1][none], EqualsBitwise(at::zeros({10, 6}, at::kDouble)));
    EXPECT_THAT(gradients[2][none], EqualsBitwise(at::zeros({6, 5}, at::kDouble)));
  }
}

TEST(Experts, NoTokensGiveNoneAndGradientsOfZeros) {
  const Case test_case(0, 3);
  const Routing routing = {at::empty({0, 2}, at::kLong), at::empty({0, 2}, at::kDouble)};
  const at::Tensor have = test_case.through(routing);
  EXPECT_EQ(have.sizes(), (at::IntArrayRef{0, 6}));
  const auto gradients = torch::autograd::grad({have.sum()}, {test_case.gate_up});
  EXPECT_THAT(gradients[0], EqualsBitwise(at::zeros({3, 10, 6}, at::kDouble)));
}

TEST(Experts, ARouterChoosesTheLikeliest) {
  const at::Tensor logits = at::tensor({0.0, 2.0, 1.0, -1.0}, at::kDouble).view({1, 4});
  const Routing summed = internal::route(logits, ExpertOptions().count(4));
  EXPECT_EQ(summed.experts[0][0].item<int64_t>(), 1);
  EXPECT_EQ(summed.experts[0][1].item<int64_t>(), 2);
  EXPECT_NEAR(summed.weights.sum().item<double>(), 1, 1e-6);
  EXPECT_EQ(summed.weights.scalar_type(), at::kDouble);
  const Routing raw = internal::route(
      logits, ExpertOptions().count(4).weights_sum_to_one(false).float32_weights(true));
  EXPECT_EQ(raw.weights.scalar_type(), at::kFloat);
  EXPECT_NEAR(raw.weights[0][0].item<double>(), logits.softmax(-1)[0][1].item<double>(), 1e-6);
}

TEST(Experts, OnMetaAllGetAsManyOrAFewGetAll) {
  EXPECT_THAT(internal::rows_on_meta(8, 4, 2, false), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(internal::rows_on_meta(3, 4, 2, false), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(internal::rows_on_meta(8, 4, 2, true), ElementsAre(8, 8, 0, 0));
}

// --- models

TransformerOptions small() {
  TransformerOptions options(TransformerKind::kLlama);
  options.vocab_size(23).max_positions(10).num_layers(2).hidden_size(16).num_heads(4);
  options.num_kv_heads(2).intermediate_size(20).initializer_range(0.3).router_logits(true);
  // There are six experts for six tokens, so some experts get no token in a micro-batch.
  options.block().experts(ExpertOptions().count(6).size(12).shared_size(8));
  return options;
}

// Options with two parallel blocks: the first one has experts, the second one an MLP.
TransformerOptions mixed() {
  TransformerOptions options = small().packed(true);
  options.block()
      .parallel(true)
      .kinds({LayerKind(), LayerKind().sparse(false)})
      .kind_of_block({0, 1});
  return options;
}

at::Tensor random_ids(int64_t rows, int64_t tokens) {
  return at::randint(23, {rows, tokens}, at::kLong);
}

at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs.at(0).flatten(0, 1), targets.at(0).flatten()) +
         0.1 * balance_loss(outputs.at(1), 2);
}

TEST(ExpertModel, GivesLogitsOfItsRouters) {
  auto model = transformer(small());
  const auto outputs = model->forward<Tensors>(random_ids(3, 5));
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].sizes(), (at::IntArrayRef{3, 5, 23}));
  EXPECT_EQ(outputs[1].sizes(), (at::IntArrayRef{3, 5, 2, 6}));
  // Without router_logits the model returns one tensor, with the same logits.
  torch::manual_seed(1);
  auto routed = transformer(small());
  torch::manual_seed(1);
  auto plain = transformer(small().router_logits(false));
  const at::Tensor ids = random_ids(2, 4);
  EXPECT_THAT(plain->forward(ids), EqualsBitwise(routed->forward<Tensors>(ids)[0]));
}

TEST(ExpertModel, CanBeCloned) {
  for (const bool packed : {false, true}) {
    auto model = transformer(small().packed(packed));
    torch::nn::Sequential clone(
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
    const at::NoGradGuard no_grad;
    const at::Tensor ids = random_ids(2, 5);
    const auto forward = [&](torch::nn::Sequential network) {
      return packed ? network->forward<Tensors>(Tensors{ids, at::zeros_like(ids)})
                    : network->forward<Tensors>(ids);
    };
    const Tensors want = forward(model);
    EXPECT_THAT(forward(clone), EqualsBitwise(want));
    for (at::Tensor& parameter : model->parameters()) parameter.zero_();
    EXPECT_THAT(forward(clone), EqualsBitwise(want)) << "it has tensors of its own";
  }
}

TEST(ExpertModel, IsThePlainModelBitForBitInPipelines) {
  testing::expect_every_table_equals_plain_model(
      [] { return transformer(small()); }, {random_ids(7, 6)}, random_ids(7, 6),
      [](const torch::nn::Sequential&) { return loss_of; });
}

TEST(ExpertModel, IsThePlainModelBitForBitWithAHeadInTheLossAndParallelBlocks) {
  const at::Tensor documents = at::arange(6).div(4, "floor").expand({7, 6}).contiguous();
  testing::expect_every_table_equals_plain_model(
      [] { return transformer(mixed().tied(true).head_in_loss(true)); },
      {random_ids(7, 6), documents}, random_ids(7, 6),
      [](const torch::nn::Sequential& model) {
        const HeadLoss head(model->ptr(model->size() - 1));
        return [head](const Tensors& outputs, const Tensors& targets) {
          return head(outputs, targets) + 0.1 * balance_loss(outputs.at(1), 2);
        };
      });
}

TEST(ExpertModel, RunsOnMeta) {
  install_meta_kernels();
  const MetaScope scope;
  for (const bool worst : {false, true}) {
    TransformerOptions options = small();
    options.block().experts().worst_on_meta(worst);
    const auto outputs = transformer(options)->forward<Tensors>(
        at::zeros({3, 5}, at::TensorOptions(at::kLong).device(at::kMeta)));
    EXPECT_EQ(outputs[0].sizes(), (at::IntArrayRef{3, 5, 23}));
    loss_of(outputs, {at::zeros({3, 5}, at::TensorOptions(at::kLong).device(at::kMeta))})
        .backward();
  }
}

TEST(ExpertModel, MistakesAreNamed) {
  const auto refused = [](const TransformerOptions& options, const char* part) {
    try {
      transformer(options);
      ADD_FAILURE() << "nothing was thrown: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  TransformerOptions options = small();
  options.block().experts().per_token(7);
  refused(options, "the experts per_token must be from 1 to 6, got 7");
  options = small();
  options.block().experts().count(-1);
  refused(options, "the count of experts must be from 0 to 4096, got -1");
  options = small();
  options.block().experts(ExpertOptions());
  refused(options, "router_logits needs blocks with experts");
  options = small();
  options.block().kinds({LayerKind().sparse(false)});
  refused(options, "none is of a sparse kind");
  options = small();
  options.block().gate_in_up(true);
  refused(options, "experts are gated MLPs");
}

// --- the balance loss

TEST(BalanceLoss, IsTheShareTimesTheProbabilityOfEachExpert) {
  // The router logits of four tokens, two blocks and three experts.
  const at::Tensor logits = at::randn({2, 2, 2, 3}, at::kDouble);
  const at::Tensor rows = logits.reshape({-1, 3}), probabilities = rows.softmax(-1);
  at::Tensor want = at::zeros({}, at::kDouble);
  for (int64_t expert = 0; expert < 3; ++expert) {
    const at::Tensor share = rows.argmax(-1).eq(expert).to(at::kDouble).mean();
    want += 3 * share * probabilities.select(1, expert).mean();
  }
  EXPECT_NEAR(balance_loss(logits, 1).item<double>(), want.item<double>(), 1e-6);
  // If all experts are chosen, each gets the same number.
  EXPECT_NEAR(balance_loss(logits, 3).item<double>(), 3, 1e-6);
}

TEST(BalanceLoss, MistakesAreNamed) {
  for (const auto& [logits, per_token, part] :
       std::vector<std::tuple<at::Tensor, int64_t, std::string>>{
           {at::Tensor(), 1, "[rows, tokens, blocks, experts]"},
           {at::zeros({2, 3}), 1, "got [2, 3]"},
           {at::zeros({1, 2, 0, 3}), 1, "got [1, 2, 0, 3]"},
           {at::zeros({1, 2, 1, 3}), 4, "per_token must be from 1 to 3"},
           {at::zeros({1, 2, 1, 3}), 0, "got 0"}}) {
    try {
      balance_loss(logits, per_token);
      ADD_FAILURE() << "nothing was thrown: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

}  // namespace
}  // namespace gpipe::models
