#include "gpipe/testing/bitwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "gpipe/testing/device.h"

namespace gpipe::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Tensors = std::vector<at::Tensor>;

at::Tensor bits(int32_t pattern) { return at::full({1}, pattern, at::kInt).view(at::kFloat); }

TEST(Bitwise, TheSameTensorWhateverItsStrides) {
  const at::Tensor x = at::rand({3, 4});
  EXPECT_THAT(x, EqualsBitwise(x));
  EXPECT_THAT(x.clone(), EqualsBitwise(x));
  EXPECT_THAT(x.t().contiguous().t(), EqualsBitwise(x));
  EXPECT_THAT(at::ones({1}).expand({5}), EqualsBitwise(at::ones({5})));
  EXPECT_THAT(at::empty({0, 3}), EqualsBitwise(at::empty({0, 3})));
  EXPECT_THAT(x.clone().requires_grad_(), EqualsBitwise(x));
  EXPECT_THAT(at::Tensor(), EqualsBitwise(at::Tensor()));
}

TEST(Bitwise, OfEveryType) {
  for (c10::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
        at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor ones = at::ones({2, 3}, type);
    EXPECT_THAT(ones.clone(), EqualsBitwise(ones)) << type;
    at::Tensor other = ones.clone();
    other[1][2].zero_();
    EXPECT_THAT(other, Not(EqualsBitwise(ones))) << type;
    EXPECT_THAT(bitwise_difference(ones, other),
                AllOf(HasSubstr("differs first at [1, 2]: expected "),
                      HasSubstr("; 1 of 6 elements differ")))
        << type;
  }
}

TEST(Bitwise, WhatATensorIs) {
  const at::Tensor x = at::zeros({2, 3});
  EXPECT_EQ(bitwise_difference(x, at::Tensor()), "expected Float[2, 3] on cpu, is undefined");
  EXPECT_EQ(bitwise_difference(at::Tensor(), x), "expected undefined, is Float[2, 3] on cpu");
  EXPECT_EQ(bitwise_difference(x, at::zeros({3, 2})),
            "expected Float[2, 3] on cpu, is Float[3, 2] on cpu");
  EXPECT_EQ(bitwise_difference(x, at::zeros({2, 3}, at::kInt)),
            "expected Float[2, 3] on cpu, is Int[2, 3] on cpu");
  EXPECT_EQ(bitwise_difference(x, at::empty({2, 3}, at::kMeta)),
            "expected Float[2, 3] on cpu, is Float[2, 3] on meta");
  EXPECT_THAT(bitwise_difference(x, x.to_sparse()), HasSubstr("Sparse"));
}

TEST(Bitwise, NoValuesNoEquality) {
  const at::Tensor meta = at::empty({2}, at::kMeta);
  EXPECT_THAT(bitwise_difference(meta, meta), HasSubstr("only dense tensors with values"));
  const at::Tensor sparse = at::ones({2}).to_sparse();
  EXPECT_THAT(bitwise_difference(sparse, sparse), HasSubstr("only dense tensors with values"));
}

TEST(Bitwise, ZerosHaveASign) {
  EXPECT_EQ(bitwise_difference(at::tensor({0.0F}), at::tensor({-0.0F})),
            "differs first at [0]: expected 0 (0x00000000), is -0 (0x80000000), 0 ulp; "
            "1 of 1 elements differ");
}

TEST(Bitwise, ANanEqualsTheSameNan) {
  const at::Tensor nan = bits(0x7fc00000);
  EXPECT_THAT(bits(0x7fc00000), EqualsBitwise(nan));
  EXPECT_EQ(bitwise_difference(nan, bits(0x7fc00001)),
            "differs first at [0]: expected nan (0x7fc00000), is nan (0x7fc00001); "
            "1 of 1 elements differ");
  EXPECT_EQ(bitwise_difference(at::ones({1}), nan),
            "differs first at [0]: expected 1 (0x3f800000), is nan (0x7fc00000); "
            "1 of 1 elements differ");
}

TEST(Bitwise, TellsTheFirstAndTheLargestDifference) {
  const at::Tensor x = at::ones({2, 2});
  at::Tensor y = x.clone();
  y[0][1] = std::nextafter(1.0F, 2.0F);
  y[1][0] = std::nextafter(std::nextafter(1.0F, 0.0F), 0.0F);
  EXPECT_EQ(bitwise_difference(x, y),
            "differs first at [0, 1]: expected 1 (0x3f800000), is 1.00000012 (0x3f800001), 1 ulp; "
            "2 of 4 elements differ, most by 2 ulp at [1, 0]");
}

TEST(Bitwise, UlpsOfOtherTypes) {
  const double next = std::nextafter(1.0, 2.0);
  EXPECT_THAT(
      bitwise_difference(at::tensor({1.0}, at::kDouble), at::tensor({next}, at::kDouble)),
      HasSubstr("expected 1 (0x3ff0000000000000), is 1.0000000000000002 (0x3ff0000000000001), "
                "1 ulp"));
  EXPECT_THAT(
      bitwise_difference(at::full({1}, 1.0, at::kHalf), at::full({1}, 1.0009765625, at::kHalf)),
      HasSubstr("expected 1 (0x3c00), is 1.001 (0x3c01), 1 ulp"));
  EXPECT_THAT(bitwise_difference(at::full({1}, 1.0, at::kBFloat16),
                                 at::full({1}, 1.0078125, at::kBFloat16)),
              HasSubstr("(0x3f81), 1 ulp"));
  // The largest number below zero and the smallest above it are 2 ulp apart, because zero lies
  // between them.
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(bitwise_difference(at::tensor({-tiny}), at::tensor({tiny})), HasSubstr(", 2 ulp"));
  const at::Tensor complex = at::view_as_complex(at::tensor({1.0F, 2.0F}));
  at::Tensor other = complex.clone();
  at::view_as_real(other)[1] = std::nextafter(2.0F, 3.0F);
  EXPECT_EQ(bitwise_difference(complex, other),
            "differs first at []: expected 1 + i 2 (0x3f800000, 0x40000000), is "
            "1 + i 2.00000024 (0x3f800000, 0x40000001), 1 ulp; 1 of 1 elements differ");
  EXPECT_THAT(complex.conj(), Not(EqualsBitwise(complex)));
  EXPECT_THAT(complex.conj().resolve_conj(), EqualsBitwise(complex.conj()));
  EXPECT_EQ(bitwise_difference(at::tensor({3}, at::kChar), at::tensor({-3}, at::kChar)),
            "differs first at [0]: expected 3 (0x03), is -3 (0xfd); 1 of 1 elements differ");
}

TEST(Bitwise, Lists) {
  const at::Tensor x = at::ones({2});
  EXPECT_THAT((Tensors{x, at::Tensor()}), EqualsBitwise(Tensors{x.clone(), at::Tensor()}));
  EXPECT_THAT(Tensors(), EqualsBitwise(Tensors()));
  EXPECT_EQ(bitwise_difference(Tensors{x}, Tensors{x, x}), "expected 1 tensors, are 2");
  EXPECT_EQ(bitwise_difference(Tensors{x, x, x}, Tensors{x, at::Tensor(), at::zeros({3})}),
            "tensor 1: expected Float[2] on cpu, is undefined; "
            "tensor 2: expected Float[2] on cpu, is Float[3] on cpu");
}

TEST(Bitwise, AFailureNamesBothAndTheDifference) {
  ::testing::StringMatchResultListener why;
  const ::testing::Matcher<const at::Tensor&> matcher = EqualsBitwise(at::zeros({2}));
  EXPECT_FALSE(matcher.MatchAndExplain(at::ones({2}), &why));
  EXPECT_THAT(why.str(), HasSubstr("differs first at [0]"));
  EXPECT_EQ(::testing::DescribeMatcher<const at::Tensor&>(matcher),
            "bitwise equal to Float[2] on cpu");
  EXPECT_EQ(::testing::DescribeMatcher<const at::Tensor&>(matcher, /*negation=*/true),
            "not bitwise equal to Float[2] on cpu");
  EXPECT_EQ(::testing::PrintToString(at::ones({1000, 1000})), "Float[1000, 1000] on cpu");
}

class BitwiseDeviceTest : public DeviceTest {};

TEST_F(BitwiseDeviceTest, ComparesThereToo) {
  const at::Tensor x = at::ones({2, 2}, device());
  EXPECT_THAT(x.clone(), EqualsBitwise(x));
  EXPECT_THAT(x + x, Not(EqualsBitwise(x)));
  if (for_gpus()) {
    EXPECT_THAT(x.cpu(), Not(EqualsBitwise(x)));
  }
}

}  // namespace
}  // namespace gpipe::testing
