#include "gpipe/internal/fingerprint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>

#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

// Asks as the stages do: at once on the CPU, with a tensor elsewhere.
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
  // Another place in the same memory.
  const at::Tensor all = at::randn({2, 20}).to(testing::device());
  const Fingerprint first = Fingerprint::of(all[0]);
  const Fingerprint second = Fingerprint::of(all[1]);
  const at::Tensor differs = first.differs(second);
  EXPECT_TRUE(differs.defined() ? testing::on_host(differs).item<bool>() : !first.matches(second));
}

TEST(FingerprintTest, MatchesWhatItCannotJudge) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(same(at::full({3}, nan), at::full({3}, 1.0)));
  EXPECT_TRUE(same(at::full({3}, 1.0), at::full({3}, nan)));
  EXPECT_TRUE(same(at::full({3}, 1, at::kLong), at::full({3}, 2, at::kLong)));
  EXPECT_TRUE(same(at::randn({0}), at::randn({0})));
  const at::Tensor all = at::randn({4, 3}).to(testing::device());
  const Fingerprint gaps = Fingerprint::of(all.narrow(0, 0, 2).narrow(1, 0, 2));
  const Fingerprint others = Fingerprint::of(all.narrow(0, 2, 2).narrow(1, 0, 2));
  EXPECT_TRUE(gaps.matches(others));
  EXPECT_FALSE(gaps.differs(others).defined());
  EXPECT_TRUE(Fingerprint::of(at::Tensor()).matches(Fingerprint()));
}

}  // namespace
}  // namespace gpipe::internal
