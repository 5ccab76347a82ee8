#include "models/head_loss.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/live_memory.h"
#include "models/testing/pipelines.h"
#include "models/transformer.h"

namespace gpipe::models {
namespace {

using gpipe::testing::EqualsBitwise;
using ::testing::HasSubstr;

struct Case {
  at::Tensor vectors, matrix, targets;

  Case(at::IntArrayRef rows, int64_t width, int64_t words, at::ScalarType type) {
    std::vector<int64_t> shape = rows.vec();
    targets = at::randint(words, shape, at::kLong);
    shape.push_back(width);
    vectors = at::randn(shape, at::kDouble).to(type).requires_grad_();
    matrix = at::randn({words, width}, at::kDouble).to(type).requires_grad_();
  }
};

struct Outcome {
  at::Tensor loss, vectors, matrix;
};

Outcome in_pieces(const Case& test_case, const HeadLossOptions& options) {
  const at::Tensor loss =
      head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets, options);
  const auto gradients = torch::autograd::grad({loss * 3}, {test_case.vectors, test_case.matrix});
  return {loss.detach(), gradients[0], gradients[1]};
}

Outcome at_once(const Case& test_case, int64_t ignore_index = -100, double soft_cap = 0) {
  at::Tensor logits = at::linear(test_case.vectors, test_case.matrix);
  if (soft_cap > 0) logits = at::tanh(logits / soft_cap) * soft_cap;
  const at::Tensor loss =
      at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), test_case.targets.reshape({-1}),
                             {}, at::Reduction::Mean, ignore_index);
  const auto gradients = torch::autograd::grad({loss * 3}, {test_case.vectors, test_case.matrix});
  return {loss.detach(), gradients[0], gradients[1]};
}

void expect_near(const Outcome& have, const Outcome& want, double tolerance) {
  const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    EXPECT_EQ(a.sizes(), b.sizes());
    EXPECT_LE((a - b).to(at::kDouble).abs().max().item<double>(),
              tolerance * b.to(at::kDouble).abs().max().item<double>());
  };
  close(have.loss, want.loss);
  close(have.vectors, want.vectors);
  close(have.matrix, want.matrix);
}

TEST(HeadCrossEntropy, IsThatOfAllLogitsUpToRounding) {
  // Tolerances are relative to the largest element. The one for bfloat16 is large, because bfloat16
  // has eight bits and the computation with all logits at once rounds each logit.
  for (const auto& [type, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kDouble, 1e-14}, {at::kFloat, 2e-6}, {at::kBFloat16, 0.05}}) {
    const Case test_case({3, 7}, 16, 29, type);
    for (const int64_t piece : {1, 4, 7, 20, 21, 1000}) {
      SCOPED_TRACE(::testing::Message() << type << ", pieces of " << piece);
      expect_near(in_pieces(test_case, HeadLossOptions().tokens_per_piece(piece)),
                  at_once(test_case), tolerance);
    }
  }
}

TEST(HeadCrossEntropy, ASoftCapBendsTheLogits) {
  for (const auto& [type, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kDouble, 1e-13}, {at::kFloat, 5e-6}, {at::kBFloat16, 0.05}}) {
    const Case test_case({3, 7}, 16, 29, type);
    for (const int64_t piece : {4, 1000}) {
      SCOPED_TRACE(::testing::Message() << type << ", pieces of " << piece);
      // The logits are of order four, so the cap of 3 changes them.
      expect_near(in_pieces(test_case, HeadLossOptions().tokens_per_piece(piece).soft_cap(3)),
                  at_once(test_case, -100, 3), tolerance);
    }
  }
}

TEST(HeadCrossEntropy, ItsBitsDependOnThePiecesAlone) {
  const Case test_case({5, 6}, 8, 11, at::kFloat);
  const Outcome first = in_pieces(test_case, HeadLossOptions().tokens_per_piece(7));
  for (int i = 0; i < 3; ++i) {
    const Outcome again = in_pieces(test_case, HeadLossOptions().tokens_per_piece(7));
    EXPECT_THAT(again.loss, EqualsBitwise(first.loss));
    EXPECT_THAT(again.vectors, EqualsBitwise(first.vectors));
    EXPECT_THAT(again.matrix, EqualsBitwise(first.matrix));
  }
}

TEST(HeadCrossEntropy, LargeLogitsDoNotOverflow) {
  Case test_case({4}, 2, 3, at::kFloat);
  test_case.vectors = (test_case.vectors.detach() * 1e4).requires_grad_();
  const Outcome have = in_pieces(test_case, HeadLossOptions().tokens_per_piece(3));
  EXPECT_TRUE(have.loss.isfinite().item<bool>());
  EXPECT_TRUE(have.vectors.isfinite().all().item<bool>());
  expect_near(have, at_once(test_case), 1e-6);
}

// The gradient of a class that is not a target, about 1 / (words * tokens), is 0 in float16 unless
// the loss is scaled: the scale must come before the rounding.
TEST(HeadCrossEntropy, AScaledLossKeepsSmallGradientsInFloat16) {
  const int64_t tokens = 64, words = 4000;
  const at::Tensor vectors = at::full({tokens, 4}, 0.25, at::kHalf).requires_grad_();
  const at::Tensor matrix = at::full({words, 4}, 0.25, at::kHalf).requires_grad_();
  const at::Tensor targets = at::zeros({tokens}, at::kLong);
  const double scale = 16384;
  (head_cross_entropy(vectors, matrix, targets, HeadLossOptions().tokens_per_piece(16)) * scale)
      .backward();
  // The gradient of a row of the matrix whose word is not a target: the mean over the tokens of a
  // vector's 0.25 / words.
  const double want = scale * 0.25 / words;
  EXPECT_NEAR(matrix.grad()[words - 1][0].item<double>(), want, 0.01 * want);
}

TEST(HeadCrossEntropy, WhatDoesNotCountMayBeInfinite) {
  Case test_case({4}, 2, 3, at::kFloat);
  test_case.targets[2] = -100;
  {
    const at::NoGradGuard no_grad;
    test_case.vectors[2].fill_(std::numeric_limits<float>::infinity());
  }
  EXPECT_TRUE(head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets)
                  .isfinite()
                  .item<bool>());
}

TEST(HeadCrossEntropy, IgnoredTargetsDoNotCount) {
  for (const int64_t ignored : {-100, 7}) {
    Case test_case({4, 5}, 6, 9, at::kDouble);
    test_case.targets.select(0, 1).fill_(ignored);
    test_case.targets.select(1, 3).fill_(ignored);
    const auto options = HeadLossOptions().tokens_per_piece(3).ignore_index(ignored);
    const Outcome have = in_pieces(test_case, options);
    expect_near(have, at_once(test_case, ignored), 1e-14);
    EXPECT_EQ(have.vectors.select(0, 1).abs().max().item<double>(), 0);
    // If no target counts, the loss is NaN and the gradients are zeros, as LibTorch's are.
    test_case.targets.fill_(ignored);
    const Outcome nothing = in_pieces(test_case, options), theirs = at_once(test_case, ignored);
    for (const Outcome& outcome : {nothing, theirs}) {
      EXPECT_TRUE(std::isnan(outcome.loss.item<double>()));
      EXPECT_TRUE(outcome.vectors.eq(0).all().item<bool>()) << outcome.vectors;
      EXPECT_TRUE(outcome.matrix.eq(0).all().item<bool>()) << outcome.matrix;
    }
  }
}

TEST(HeadCrossEntropy, OfNoTokensIsNanWithGradientsOfZeros) {
  const Case test_case({0}, 4, 5, at::kFloat);
  for (const Outcome& outcome : {in_pieces(test_case, {}), at_once(test_case)}) {
    EXPECT_TRUE(std::isnan(outcome.loss.item<double>()));
    EXPECT_TRUE(outcome.matrix.eq(0).all().item<bool>()) << outcome.matrix;
  }
}

TEST(HeadCrossEntropy, GradientsAreComputedOnlyWhereWanted) {
  const Case test_case({3, 4}, 5, 6, at::kDouble);
  const Outcome want = in_pieces(test_case, {});
  const at::Tensor vectors = test_case.vectors.detach(), matrix = test_case.matrix.detach();
  const auto with_matrix = head_cross_entropy(vectors, test_case.matrix, test_case.targets);
  EXPECT_THAT(torch::autograd::grad({with_matrix * 3}, {test_case.matrix})[0],
              EqualsBitwise(want.matrix));
  const auto with_vectors = head_cross_entropy(test_case.vectors, matrix, test_case.targets);
  EXPECT_THAT(torch::autograd::grad({with_vectors * 3}, {test_case.vectors})[0],
              EqualsBitwise(want.vectors));
  const auto with_neither = head_cross_entropy(vectors, matrix, test_case.targets);
  EXPECT_FALSE(with_neither.requires_grad());
  EXPECT_THAT(with_neither, EqualsBitwise(want.loss));
  const torch::NoGradGuard no_grad;
  EXPECT_THAT(head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets),
              EqualsBitwise(want.loss));
}

TEST(HeadCrossEntropy, GivesEachGradientOnce) {
  const Case test_case({3, 4}, 5, 6, at::kDouble);
  const Outcome want = in_pieces(test_case, {});
  const at::Tensor loss =
      head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets);
  const auto gradient = [&](const at::Tensor& input, bool create_graph = false) {
    return torch::autograd::grad({loss * 3}, {input}, {}, /*retain_graph=*/true, create_graph)[0];
  };
  EXPECT_THROW(gradient(test_case.vectors, true), c10::Error);
  EXPECT_THAT(gradient(test_case.vectors), EqualsBitwise(want.vectors));
  EXPECT_THAT(gradient(test_case.matrix), EqualsBitwise(want.matrix));
  try {
    gradient(test_case.matrix);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("compute it again for a second backward"));
  }
}

TEST(HeadCrossEntropy, MistakesAreNamed) {
  const Case test_case({3, 4}, 5, 6, at::kFloat);
  const auto refused = [](const std::function<void()>& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown: " << part;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused([&] { in_pieces(test_case, HeadLossOptions().tokens_per_piece(0)); }, "tokens_per_piece");
  refused([&] { head_cross_entropy(test_case.vectors, test_case.matrix.t(), test_case.targets); },
          "[5, 6]");
  refused(
      [&] {
        head_cross_entropy(test_case.vectors.to(at::kDouble), test_case.matrix, test_case.targets);
      },
      "Double");
  refused(
      [&] { head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets.flatten()); },
      "must be Long of shape [3, 4], got Long of shape [12]");
  refused(
      [&] {
        head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets.to(at::kInt));
      },
      "got Int");
  refused([] { HeadLoss(nullptr); }, "got none");
  auto model = transformer(gpt2_small().num_layers(0).hidden_size(12).vocab_size(5));
  refused([&] { HeadLoss(model->ptr(2)); }, "got one without");
  refused([&] { HeadLoss(model->ptr(1)); }, "TokenNorm");
}

// --- memory

TEST(HeadCrossEntropy, HoldsTheLogitsOfOnePiece) {
  gpipe::testing::count_live_memory();
  const int64_t tokens = 1024, words = 2000, width = 16, piece = 64;
  const Case test_case({tokens}, width, words, at::kFloat);
  const auto most = [&](const std::function<at::Tensor()>& loss) {
    test_case.vectors.mutable_grad() = at::Tensor();
    test_case.matrix.mutable_grad() = at::Tensor();
    const int64_t before = gpipe::testing::live_bytes();
    gpipe::testing::reset_peak_bytes();
    loss().backward();
    return gpipe::testing::peak_bytes() - before;
  };
  const int64_t whole = most([&] {
    return at::cross_entropy_loss(at::linear(test_case.vectors, test_case.matrix),
                                  test_case.targets);
  });
  const int64_t pieces = most([&] {
    return head_cross_entropy(test_case.vectors, test_case.matrix, test_case.targets,
                              HeadLossOptions().tokens_per_piece(piece));
  });
  const int64_t logits = tokens * words * 4, gradients = (tokens + words) * width * 4;
  EXPECT_GE(whole, 2 * logits);
  // Room for a piece's logits, for the results of one operation on them, and for the gradients.
  EXPECT_LE(pieces, 3 * logits / (tokens / piece) + gradients + 100'000);
}

// --- models

TransformerOptions small(TransformerKind kind) {
  TransformerOptions options(kind);
  options.vocab_size(23).max_positions(10).num_layers(1).hidden_size(16).num_heads(4);
  return options.intermediate_size(20).head_in_loss(true);
}

at::Tensor random_ids(int64_t rows, int64_t tokens) {
  return at::randint(23, {rows, tokens}, at::kLong);
}

TransformerOptions capped() {
  TransformerOptions options = small(TransformerKind::kLlama).initializer_range(0.5);
  options.block().logit_soft_cap(2);
  return options;
}

TEST(HeadLoss, TrainsAsTheModelWithLogits) {
  for (const TransformerOptions& options :
       {small(TransformerKind::kGPT2), small(TransformerKind::kLlama), capped()}) {
    const at::Tensor ids = random_ids(3, 8), next = random_ids(3, 8);
    torch::manual_seed(1);
    auto whole = transformer(TransformerOptions(options).head_in_loss(false));
    torch::manual_seed(1);
    auto model = transformer(options);
    const HeadLoss loss(model->ptr(model->size() - 1), HeadLossOptions().tokens_per_piece(5));
    const at::Tensor logits = whole->forward(ids), vectors = model->forward(ids);
    EXPECT_EQ(vectors.sizes(), (at::IntArrayRef{3, 8, 16}));
    EXPECT_THAT(loss.logits(vectors), EqualsBitwise(logits));
    const at::Tensor want = at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
    const at::Tensor have = loss({vectors}, {next});
    want.backward();
    have.backward();
    EXPECT_NEAR(have.item<double>(), want.item<double>(), 1e-6);  // the loss is about 3, in float32
    const auto expected = whole->named_parameters();
    ASSERT_EQ(model->named_parameters().keys(), expected.keys());
    for (const auto& parameter : model->named_parameters()) {
      const at::Tensor& gradient = expected[parameter.key()].grad();
      EXPECT_LE((parameter.value().grad() - gradient).abs().max().item<double>(),
                1e-5 * gradient.abs().max().item<double>() + 1e-9)
          << parameter.key();
    }
  }
}

class HeadLossPipeline : public ::testing::TestWithParam<TransformerOptions> {};

TEST_P(HeadLossPipeline, IsThePlainModelBitForBit) {
  testing::expect_every_table_equals_plain_model(
      [&] { return transformer(GetParam()); }, {random_ids(7, 6)}, random_ids(7, 6),
      [](const torch::nn::Sequential& model) {
        return HeadLoss(model->ptr(model->size() - 1), HeadLossOptions().tokens_per_piece(5));
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, HeadLossPipeline,
                         ::testing::Values(small(TransformerKind::kGPT2),
                                           small(TransformerKind::kLlama)));

}  // namespace
}  // namespace gpipe::models
