#include "gpipe/internal/tensors/finite.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gpipe::internal {
namespace {

TEST(Finite, CountsNansAndInfinitiesApart) {
  at::Tensor values = at::ones({8});
  EXPECT_EQ(what_is_not_finite(values), "");
  values[1] = -INFINITY;
  EXPECT_EQ(what_is_not_finite(values), "1 of 8 values is infinite");
  values[2] = INFINITY;
  values[5] = NAN;
  EXPECT_EQ(what_is_not_finite(values), "1 of 8 values is nan, 2 are infinite");
  values[7] = NAN;
  values[2] = 1;
  EXPECT_EQ(what_is_not_finite(values), "2 of 8 values are nan, 1 is infinite");
  values[1] = 1;
  EXPECT_EQ(what_is_not_finite(values), "2 of 8 values are nan");
}

}  // namespace
}  // namespace gpipe::internal
