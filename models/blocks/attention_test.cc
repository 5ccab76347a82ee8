#include "models/blocks/attention.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::models::internal {
namespace {

using gpipe::testing::EqualsBitwise;

at::Tensor numbers(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

// Computes attention by its definition, one token after another.
at::Tensor by_hand(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                   const at::Tensor& documents, const AttentionOptions& options = {}) {
  at::Tensor result = at::zeros_like(queries);
  const int64_t group = queries.size(1) / keys.size(1);
  for (int64_t n = 0; n < queries.size(0); ++n) {
    for (int64_t h = 0; h < queries.size(1); ++h) {
      for (int64_t t = 0; t < queries.size(2); ++t) {
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s) {
          if (documents.defined() && !documents[n][s].equal(documents[n][t])) continue;
          if (options.window > 0 && s <= t - options.window) continue;
          double product = queries[n][h][t].dot(keys[n][h / group][s]).item<double>();
          product *= options.scale > 0 ? options.scale
                                       : 1 / std::sqrt(static_cast<double>(queries.size(3)));
          if (options.soft_cap > 0) {
            product = options.soft_cap * std::tanh(product / options.soft_cap);
          }
          const double weight = std::exp(product);
          sum += weight;
          result[n][h][t] += weight * values[n][h / group][s];
        }
        result[n][h][t] /= sum;
      }
    }
  }
  return result;
}

AttentionOptions fused(bool on) {
  AttentionOptions options;
  options.fused = on;
  return options;
}

TEST(CausalAttention, IsTheWeightedMeanOfTheValuesSoFar) {
  const at::Tensor documents = at::tensor({7, 7, 3, 3, 3, 1, 1, 1, 1, 7}, at::kLong).view({2, 5});
  for (const int64_t kv_heads : {6, 3, 1}) {
    const at::Tensor queries = numbers({2, 6, 5, 4}), keys = numbers({2, kv_heads, 5, 4}),
                     values = numbers({2, kv_heads, 5, 4});
    for (const at::Tensor& one_of : {at::Tensor(), documents}) {
      const at::Tensor want = by_hand(queries, keys, values, one_of);
      for (const bool by_libtorch : {false, true}) {
        SCOPED_TRACE(::testing::Message() << kv_heads << " heads of keys, documents "
                                          << one_of.defined() << ", fused " << by_libtorch);
        const at::Tensor have = causal_attention(queries, keys, values, one_of, fused(by_libtorch));
        EXPECT_EQ(have.sizes(), want.sizes());
        // The values are of order one, in double precision.
        EXPECT_LT((have - want).abs().max().item<double>(), 1e-13);
      }
    }
  }
}

TEST(CausalAttention, KnowsScalesCapsAndWindows) {
  const at::Tensor documents = at::tensor({7, 7, 3, 3, 3, 1, 1, 1, 1, 7}, at::kLong).view({2, 5});
  const at::Tensor queries = numbers({2, 6, 5, 4}), keys = numbers({2, 3, 5, 4}),
                   values = numbers({2, 3, 5, 4});
  for (const int64_t window : {0, 1, 2, 4, 5, 9}) {
    for (const double soft_cap : {0.0, 1.5}) {
      for (const bool by_libtorch : {false, true}) {
        if (by_libtorch && soft_cap > 0) continue;
        AttentionOptions options = fused(by_libtorch);
        options.window = window;
        options.soft_cap = soft_cap;
        options.scale = 0.7;
        for (const at::Tensor& one_of : {at::Tensor(), documents}) {
          const at::Tensor want = by_hand(queries, keys, values, one_of, options);
          const at::Tensor have = causal_attention(queries, keys, values, one_of, options);
          EXPECT_LT((have - want).abs().max().item<double>(), 1e-13) << window;
        }
        const at::Tensor want = by_hand(queries, keys, values, {}, options).narrow(2, 3, 2);
        const at::Tensor places = at::arange(3, 5).expand({2, 2});
        const at::Tensor have = attention_up_to(places, at::arange(5).unsqueeze(0),
                                                queries.narrow(2, 3, 2), keys, values, options);
        EXPECT_LT((have - want).abs().max().item<double>(), 1e-13) << window;
      }
    }
  }
}

TEST(AttentionUpTo, IsThatOfTheLastTokens) {
  for (const int64_t kv_heads : {6, 3, 1}) {
    const at::Tensor queries = numbers({2, 6, 5, 4}), keys = numbers({2, kv_heads, 5, 4}),
                     values = numbers({2, kv_heads, 5, 4});
    const at::Tensor want = by_hand(queries, keys, values, {});
    for (const bool by_libtorch : {false, true}) {
      // The queries are two tokens of each row, which begin at another place in each row.
      const int64_t begins[] = {1, 3};
      std::vector<at::Tensor> some, places, of_those;
      for (const int64_t row : {0, 1}) {
        some.push_back(queries[row].narrow(1, begins[row], 2));
        places.push_back(at::arange(begins[row], begins[row] + 2));
        of_those.push_back(want[row].narrow(1, begins[row], 2));
      }
      const at::Tensor have = attention_up_to(at::stack(places), at::arange(5).unsqueeze(0),
                                              at::stack(some), keys, values, fused(by_libtorch));
      EXPECT_LT((have - at::stack(of_those)).abs().max().item<double>(), 1e-13);
      // Keys at negative places are empty and must not be seen, in whatever order the keys lie.
      const at::Tensor order = at::tensor({-1, 3, 0, 4, 2, 1, -5}, at::kLong);
      const at::Tensor from = order.clamp_min(0);
      EXPECT_LT((attention_up_to(at::stack(places), order.unsqueeze(0), at::stack(some),
                                 keys.index_select(2, from), values.index_select(2, from),
                                 fused(by_libtorch)) -
                 at::stack(of_those))
                    .abs()
                    .max()
                    .item<double>(),
                1e-13);
    }
  }
}

TEST(CausalAttention, TheSoftmaxIsInFloat32IfAsked) {
  const at::Tensor queries = numbers({1, 2, 6, 4}), keys = numbers({1, 2, 6, 4}),
                   values = numbers({1, 2, 6, 4});
  AttentionOptions options;
  options.float32_softmax = true;
  const at::Tensor rounded = causal_attention(queries, keys, values, {}, options);
  const double apart =
      (rounded - causal_attention(queries, keys, values, {}, {})).abs().max().item<double>();
  EXPECT_EQ(rounded.scalar_type(), at::kDouble);
  EXPECT_GT(apart, 1e-10);
  EXPECT_LT(apart, 1e-5);
}

TEST(CausalAttention, DropsWeights) {
  // All values are one, so each result would be one without dropout. With dropout the mean is still
  // one, but single results differ.
  const at::Tensor ones = at::ones({4, 4, 16, 8});
  AttentionOptions options;
  options.dropout = 0.5;
  const at::Tensor result = causal_attention(ones, ones, ones, {}, options);
  EXPECT_NEAR(result.mean().item<double>(), 1, 0.2);  // the mean of 256 sums
  EXPECT_EQ(result.select(2, 0).eq(0).logical_or(result.select(2, 0).eq(2)).all().item<bool>(),
            true);  // the first token's only weight is dropped (0) or doubled (2)
  EXPECT_GT(result.std().item<double>(), 0.1);
}

TEST(CausalAttention, GradientsFlowToAll) {
  for (const bool by_libtorch : {false, true}) {
    std::vector<at::Tensor> leaves;
    for (const int64_t heads : {4, 2, 2})
      leaves.push_back(numbers({2, heads, 3, 2}).requires_grad_());
    causal_attention(leaves[0], leaves[1], leaves[2], {}, fused(by_libtorch))
        .pow(2)
        .sum()
        .backward();
    for (const at::Tensor& leaf : leaves) {
      // Compares the gradient with a central difference in a random direction.
      const at::Tensor direction = at::randn_like(leaf);
      const auto loss = [&](double step) {
        const at::NoGradGuard no_grad;
        std::vector<at::Tensor> moved = leaves;
        for (at::Tensor& each : moved) {
          if (each.is_same(leaf)) each = each + step * direction;
        }
        return causal_attention(moved[0], moved[1], moved[2], {}, fused(by_libtorch))
            .pow(2)
            .sum()
            .item<double>();
      };
      const double step = 1e-5;  // its error is of order step squared
      EXPECT_NEAR((leaf.grad() * direction).sum().item<double>(),
                  (loss(step) - loss(-step)) / (2 * step), 1e-7);
    }
  }
}

TEST(Positions, StartAgainWithEachDocument) {
  const at::Tensor documents =
      at::tensor({5, 5, 5, 5, 5, 0, 1, 1, 2, 1, 4, 4, 3, 3, 3}, at::kLong).view({3, 5});
  const at::Tensor want =
      at::tensor({0, 1, 2, 3, 4, 0, 0, 1, 0, 0, 0, 1, 0, 1, 2}, at::kLong).view({3, 5});
  EXPECT_THAT(positions_in(documents), EqualsBitwise(want));
  EXPECT_EQ(positions_in(documents.slice(1, 0, 0)).sizes(), (at::IntArrayRef{3, 0}));
}

TEST(Lengths, AreThoseOfTheDocuments) {
  const at::Tensor documents =
      at::tensor({5, 5, 5, 5, 5, 0, 1, 1, 2, 1, 4, 4, 3, 3, 3}, at::kLong).view({3, 5});
  const at::Tensor want =
      at::tensor({5, 5, 5, 5, 5, 1, 2, 2, 1, 1, 2, 2, 3, 3, 3}, at::kLong).view({3, 5});
  EXPECT_THAT(lengths_in(documents), EqualsBitwise(want));
}

}  // namespace
}  // namespace gpipe::models::internal
