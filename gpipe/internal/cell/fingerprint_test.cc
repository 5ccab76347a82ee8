#include "gpipe/internal/cell/fingerprint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

// Compares as the stages do: at once on the CPU, and with a tensor elsewhere.
bool same(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor here = a.to(testing::device());
  const at::Tensor there = b.to(testing::device());
  const Fingerprint first = Fingerprint::of(here);
  const Fingerprint second = Fingerprint::of(there);
  if (!first.matches(second)) return false;
  const at::Tensor differs = first.differs(second);
  if (differs.defined()) return !testing::on_host(differs).item<bool>();
  return first.matches(second);
}

TEST(FingerprintTest, TellsValuesApartAndForgivesTheirLastBits) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t count : {1, 7, 300, 5000}) {
      const at::Tensor x = at::randn({count, 3}, type);
      EXPECT_TRUE(same(x, x.clone()));
      EXPECT_TRUE(same(x, x * (1 + 1e-6)));
      EXPECT_FALSE(same(x, x * 1.5));
      EXPECT_FALSE(same(x, -x));
      EXPECT_TRUE(count == 1 || !same(x, x.flip(0)));
    }
  }
}

TEST(FingerprintTest, ANumberOfValuesIsAValue) {
  EXPECT_FALSE(same(at::full({3}, 2.0), at::full({4}, 2.0)));
  EXPECT_FALSE(same(at::full({1}, 2.0), at::full({4}, 2.0)));
}

TEST(FingerprintTest, SeesAnyLayoutThatIsDense) {
  const at::Tensor x = at::randn({4, 5, 6}).transpose(0, 2);
  EXPECT_TRUE(same(x, x));
  EXPECT_FALSE(same(x, x * 2));
  // Two rows of the same memory have different values, so their fingerprints differ.
  const at::Tensor all = at::randn({2, 20}).to(testing::device());
  const Fingerprint first = Fingerprint::of(all[0]);
  const Fingerprint second = Fingerprint::of(all[1]);
  const at::Tensor differs = first.differs(second);
  EXPECT_TRUE(differs.defined() ? testing::on_host(differs).item<bool>() : !first.matches(second));
}

TEST(FingerprintTest, LooksAtEveryTypeThatCanRequireAGradient) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
        at::kComplexHalf, at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2,
        at::kFloat8_e5m2fnuz}) {
    SCOPED_TRACE(c10::toString(type));
    for (const int64_t count : {1, 7, 300, 5000}) {
      // Values that are powers of two, so that every type has them and their doubles.
      const at::Tensor exponents = at::randint(-3, 3, {count, 3}).to(at::kFloat);
      at::Tensor x = at::pow(2.0, exponents);
      if (c10::isComplexType(type)) x = at::complex(x, x.flip(1));
      EXPECT_TRUE(same(x.to(type), x.to(type)));
      EXPECT_FALSE(same(x.to(type), (x * 2).to(type)));
      EXPECT_FALSE(same(x.to(type), (-x).to(type)));
      if (c10::isComplexType(type)) {
        EXPECT_FALSE(same(x.to(type), x.conj().to(type)));
        EXPECT_FALSE(same(x.to(type), at::complex(at::real(x), at::imag(x) * 2).to(type)));
      }
    }
  }
}

// These types have few significant bits. A sum in another order may be rounded to the neighboring
// value, which the fingerprint must accept.
TEST(FingerprintTest, ForgivesAValueThatWasRoundedOtherwise) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn}) {
    SCOPED_TRACE(c10::toString(type));
    const double gap = type == at::kHalf ? 0x1p-10 : type == at::kBFloat16 ? 0x1p-7 : 0x1p-3;
    for (const int64_t count : {1, 300}) {
      const at::Tensor x = at::full({count}, 1.0);
      const at::Tensor y = x.clone();
      y[0] = 1 + gap;
      EXPECT_TRUE(same(x.to(type), y.to(type)));
      EXPECT_FALSE(same(x.to(type), (x * 1.5).to(type)));
    }
  }
}

TEST(FingerprintTest, SeesAnyStrides) {
  const auto check = [](const std::string& what, const std::function<at::Tensor(at::Tensor)>& view,
                        at::IntArrayRef sizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
      SCOPED_TRACE(what + " " + c10::toString(type));
      // The view is made on the device, because to() makes some strides dense.
      const at::Tensor x = at::randn(sizes, at::kFloat).to(type).to(testing::device());
      const auto differ = [&](const at::Tensor& a, const at::Tensor& b) {
        const Fingerprint first = Fingerprint::of(view(a));
        const Fingerprint second = Fingerprint::of(view(b));
        if (!first.matches(second)) return true;
        const at::Tensor differs = first.differs(second);
        return differs.defined() && testing::on_host(differs).item<bool>();
      };
      EXPECT_FALSE(differ(x, x.clone()));
      EXPECT_TRUE(differ(x, x * 1.5));
      EXPECT_TRUE(differ(x, -x));
    }
  };
  check("gaps", [](at::Tensor x) { return x.narrow(1, 1, 2); }, {4, 5});
  check("many gaps", [](at::Tensor x) { return x.narrow(1, 1, 50).narrow(0, 3, 90); }, {100, 60});
  check("gaps in the middle", [](at::Tensor x) { return x.narrow(1, 1, 3); }, {40, 5, 30});
  check("transposed gaps", [](at::Tensor x) { return x.narrow(1, 1, 3).transpose(0, 2); },
        {4, 5, 6});
  check("expanded", [](at::Tensor x) { return x.expand({400, 7}); }, {1, 7});
  check("one value", [](at::Tensor x) { return x.expand({40, 70}); }, {1, 1});
  check("expanded inside", [](at::Tensor x) { return x.expand({30, 500, 7}); }, {30, 1, 7});
  check("overlapping", [](at::Tensor x) { return x.as_strided({60, 7}, {1, 1}); }, {70});
  check("steps", [](at::Tensor x) { return x.slice(0, 0, 90, 3); }, {90, 4});
  check("a column", [](at::Tensor x) { return x.select(1, 2); }, {2000, 4});
  check("an offset", [](at::Tensor x) { return x.narrow(0, 3, 1); }, {4, 3});
  check("no dimension", [](at::Tensor x) { return x.select(0, 3); }, {5});
}

TEST(FingerprintTest, SeesNothingBesideTheTensor) {
  const at::Tensor table = at::randn({50, 4}).to(testing::device());
  const at::Tensor other = table * 3;
  other.narrow(1, 1, 2).copy_(table.narrow(1, 1, 2));
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    const Fingerprint first = Fingerprint::of(a);
    const Fingerprint second = Fingerprint::of(b);
    if (!first.matches(second)) return true;
    const at::Tensor differs = first.differs(second);
    return differs.defined() && testing::on_host(differs).item<bool>();
  };
  EXPECT_FALSE(differ(table.select(1, 2), other.select(1, 2))) << "a column";
  EXPECT_FALSE(differ(table.narrow(1, 1, 2), other.narrow(1, 1, 2))) << "two columns";
  EXPECT_TRUE(differ(table, other));
}

// On the CPU values are read from memory, where lazy negation and conjugation do not show.
// Elsewhere LibTorch's operators read the values. The fingerprint must see the signs in both cases.
TEST(FingerprintTest, SeesLazyNegationAndConjugation) {
  const at::Tensor z = at::complex(at::randn({5}), at::randn({5}));
  const auto match = [](const at::Tensor& a, const at::Tensor& b) {
    return Fingerprint::of(a).matches(Fingerprint::of(b));
  };
  EXPECT_FALSE(match(z, z.conj()));
  EXPECT_TRUE(match(z.conj(), z.conj().resolve_conj()));
  EXPECT_FALSE(match(at::imag(z), at::imag(z.conj())));
}

TEST(FingerprintTest, SeesValuesAndPlacesOfSparseTensors) {
  const at::Tensor x = at::randn({6, 5}) * (at::rand({6, 5}) < 0.5);
  for (const c10::Layout layout : {c10::kSparse, c10::kSparseCsr, c10::kSparseCsc}) {
    SCOPED_TRACE(layout);
    const auto fingerprint = [layout](const at::Tensor& dense) {
      return Fingerprint::of(dense.to_sparse(layout));
    };
    EXPECT_TRUE(fingerprint(x).matches(fingerprint(x.clone())));
    EXPECT_FALSE(fingerprint(x).matches(fingerprint(x * 1.5)));
    EXPECT_FALSE(fingerprint(x).matches(fingerprint(x.roll(1, 0)))) << "other rows";
    EXPECT_FALSE(fingerprint(x).matches(fingerprint(at::ones({6, 5}))))
        << "another number of values";
    EXPECT_TRUE(fingerprint(at::zeros({6, 5})).matches(fingerprint(at::zeros({6, 5}))));
  }
}

TEST(FingerprintTest, SeesNestedTensors) {
  const at::Tensor x = at::randn({3, 4}), y = at::randn({2, 4});
  const auto fingerprint = [](const at::Tensor& a, const at::Tensor& b) {
    return Fingerprint::of(at::_nested_tensor_from_tensor_list({a, b}));
  };
  EXPECT_TRUE(fingerprint(x, y).matches(fingerprint(x.clone(), y.clone())));
  EXPECT_FALSE(fingerprint(x, y).matches(fingerprint(x, y * 1.5)));
}

TEST(FingerprintTest, MatchesWhatItCannotJudge) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(same(at::full({3}, nan), at::full({3}, 1.0)));
  EXPECT_TRUE(same(at::full({3}, 1.0), at::full({3}, nan)));
  EXPECT_TRUE(same(at::full({3}, 1, at::kLong), at::full({3}, 2, at::kLong)));
  EXPECT_TRUE(same(at::randn({0}), at::randn({0})));
  EXPECT_TRUE(Fingerprint::of(at::Tensor()).matches(Fingerprint()));
}

}  // namespace
}  // namespace gpipe::internal
