#include "models/blocks/rotary.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::models::internal {
namespace {

using gpipe::testing::EqualsBitwise;

at::Tensor numbers(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

TransformerOptions heads_of(int64_t size, double theta) {
  return TransformerOptions(TransformerKind::kLlama)
      .hidden_size(2 * size)
      .num_heads(2)
      .max_positions(16)
      .rope_theta(theta);
}

Rotation plain(const at::Tensor& places, int64_t size, double theta) {
  return rotation(heads_of(size, theta), RotaryOptions(), places, {}, at::kDouble);
}

TEST(Rotation, TurnsPairsOfHalves) {
  const int64_t size = 6;
  const double theta = 50;
  const at::Tensor heads = numbers({1, 2, 4, size});
  const at::Tensor turned = rotate(heads, plain(at::arange(4), size, theta));
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < size / 2; ++i) {
      const double angle = t / std::pow(theta, 2.0 * i / size);
      const at::Tensor x = heads.select(2, t).select(2, i), y = heads.select(2, t).select(2, i + 3);
      const at::Tensor want = x * std::cos(angle) - y * std::sin(angle),
                       also = y * std::cos(angle) + x * std::sin(angle);
      // The bound is that of float32, in which the angles are computed.
      EXPECT_LT((turned.select(2, t).select(2, i) - want).abs().max().item<double>(), 2e-6);
      EXPECT_LT((turned.select(2, t).select(2, i + 3) - also).abs().max().item<double>(), 2e-6);
    }
  }
}

TEST(Rotation, ProductsDependOnDistancesAlone) {
  const at::Tensor query = numbers({1, 1, 1, 8}), key = numbers({1, 1, 1, 8});
  const auto product = [&](int64_t place, int64_t other) {
    const auto turned = [](const at::Tensor& x, int64_t position) {
      return rotate(x, plain(at::full({1, 1}, position, at::kLong), 8, 10000));
    };
    return (turned(query, place) * turned(key, other)).sum().item<double>();
  };
  EXPECT_NEAR(product(9, 2), product(17, 10), 1e-5);  // angles in float32
  EXPECT_GT(std::abs(product(9, 2) - product(9, 4)), 1e-3);
}

// The cosines of a text's tokens.
at::Tensor cosines(const RotaryOptions& rotary, int64_t tokens) {
  return rotation(heads_of(8, 100), rotary, at::arange(tokens), at::full({1}, tokens, at::kLong),
                  at::kFloat)
      .cosines;
}

TEST(Rotation, APartOfAHeadStaysAsItIs) {
  const TransformerOptions options = heads_of(8, 100);
  const at::Tensor heads = numbers({1, 2, 4, 8});
  const at::Tensor turned =
      rotate(heads, rotation(options, RotaryOptions().part(0.5), at::arange(4), {}, at::kDouble));
  EXPECT_THAT(turned.slice(3, 4), EqualsBitwise(heads.slice(3, 4)));
  EXPECT_THAT(turned.slice(3, 0, 4),
              EqualsBitwise(rotate(heads.slice(3, 0, 4), plain(at::arange(4), 4, 100))));
}

TEST(Rotation, LinearlyStretchedIsThatOfEarlierPlaces) {
  const at::Tensor whole = cosines(RotaryOptions(), 8);
  const at::Tensor stretched = cosines(RotaryOptions().kind(RotaryKind::kLinear).factor(4), 29);
  for (const int64_t place : {0, 1, 5, 7}) {
    EXPECT_THAT(stretched.select(0, 4 * place), EqualsBitwise(whole.select(0, place)));
  }
}

TEST(Rotation, DependsOnTheLengthIfItsKindDoes) {
  const RotaryOptions dynamic = RotaryOptions().kind(RotaryKind::kDynamic).factor(2);
  const RotaryOptions by_length = RotaryOptions()
                                      .kind(RotaryKind::kLongRope)
                                      .original_positions(12)
                                      .short_factors({1, 1, 1, 1})
                                      .long_factors({1, 2, 3, 4});
  // Up to the original lengths, 16 and 12, the rotation is the plain one.
  EXPECT_THAT(cosines(dynamic, 16), EqualsBitwise(cosines(RotaryOptions(), 16)));
  EXPECT_THAT(cosines(by_length, 12), EqualsBitwise(cosines(RotaryOptions(), 12)));
  EXPECT_FALSE(cosines(dynamic, 17).equal(cosines(RotaryOptions(), 17)));
  EXPECT_FALSE(cosines(by_length, 13).equal(cosines(RotaryOptions(), 13)));
  // Documents of several lengths beside each other have the angles that they have alone.
  for (const RotaryOptions& rotary : {dynamic, by_length}) {
    const at::Tensor places = at::cat({at::arange(20), at::arange(5)}).unsqueeze(0);
    const at::Tensor lengths =
        at::cat({at::full({20}, 20, at::kLong), at::full({5}, 5, at::kLong)}).unsqueeze(0);
    const at::Tensor both =
        rotation(heads_of(8, 100), rotary, places, lengths, at::kFloat).cosines[0][0];
    EXPECT_THAT(both.slice(0, 0, 20), EqualsBitwise(cosines(rotary, 20)));
    EXPECT_THAT(both.slice(0, 20), EqualsBitwise(cosines(rotary, 5)));
  }
}

}  // namespace
}  // namespace gpipe::models::internal
