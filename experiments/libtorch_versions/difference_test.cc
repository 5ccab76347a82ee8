#include "experiments/libtorch_versions/difference.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gpipe::experiments {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Difference, CountsUnitsInTheLastPlace) {
  const float next = std::nextafter(std::nextafter(1.0F, 2.0F), 2.0F);
  const Difference difference =
      difference_of(at::tensor({1.0F, 8.0F, 0.0F}), at::tensor({next, 8.0F, 0.0F}));
  EXPECT_EQ(difference.elements, 3);
  EXPECT_EQ(difference.differ, 1);
  EXPECT_EQ(difference.ulp, 2u);
  EXPECT_EQ(difference.of_largest, 0.25) << "8 has units eight times as large";
  EXPECT_FALSE(difference.equal());
}

TEST(Difference, NanIsNan) {
  EXPECT_TRUE(difference_of(at::tensor({kNan}), at::tensor({-kNan})).equal());
  EXPECT_EQ(difference_of(at::tensor({kNan}), at::tensor({1.0F})).incomparable,
            "a NaN and a number");
  EXPECT_EQ(difference_of(at::tensor({kInfinity}), at::tensor({1.0F})).incomparable,
            "an infinity and a number");
}

TEST(Difference, ZerosHaveASign) {
  const Difference difference = difference_of(at::tensor({0.0F}), at::tensor({-0.0F}));
  EXPECT_EQ(difference.differ, 1);
  EXPECT_EQ(difference.ulp, 0u);
}

TEST(Difference, SomeTypesHaveNoDistance) {
  EXPECT_EQ(difference_of(at::zeros({2}), at::zeros({3})).incomparable, "Float[2] and Float[3]");
  EXPECT_EQ(difference_of(at::tensor({1}), at::tensor({2})).incomparable, "other values of Int");
  EXPECT_TRUE(difference_of(at::tensor({1}), at::tensor({1})).equal());
}

}  // namespace
}  // namespace gpipe::experiments
