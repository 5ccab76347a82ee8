#include "gpipe/testing/ulp.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace gpipe::testing {
namespace {

template <typename T>
std::optional<uint64_t> between(T a, T b) {
  return ulp_distance(c10::CppTypeToScalarType<T>::value, reinterpret_cast<const char*>(&a),
                      reinterpret_cast<const char*>(&b));
}

TEST(Ulp, CountsTheNumbersOfTheType) {
  EXPECT_EQ(between(1.0F, 1.0F), 0u);
  EXPECT_EQ(between(1.0F, std::nextafter(1.0F, 2.0F)), 1u);
  EXPECT_EQ(between(1.0F, 2.0F), uint64_t{1} << 23);
  EXPECT_EQ(between(1.0, 2.0), uint64_t{1} << 52);
  EXPECT_EQ(between(c10::Half(1), c10::Half(2)), uint64_t{1} << 10);
  EXPECT_EQ(between(c10::BFloat16(1), c10::BFloat16(2)), uint64_t{1} << 7);
}

TEST(Ulp, GoesThroughZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(between(0.0F, -0.0F), 0u);
  EXPECT_EQ(between(tiny, -tiny), 2u);
}

TEST(Ulp, OfAComplexNumberTheFartherPart) {
  const float next = std::nextafter(1.0F, 2.0F);
  EXPECT_EQ(between(c10::complex<float>(1, 1), c10::complex<float>(next, 1)), 1u);
  EXPECT_EQ(between(c10::complex<float>(1, 1), c10::complex<float>(next, 2)), uint64_t{1} << 23);
}

TEST(Ulp, SomeHaveNoDistance) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(between(nan, 1.0F), std::nullopt);
  EXPECT_EQ(between(nan, nan), 0u);
  EXPECT_EQ(between(int64_t{1}, int64_t{2}), std::nullopt);
}

}  // namespace
}  // namespace gpipe::testing
