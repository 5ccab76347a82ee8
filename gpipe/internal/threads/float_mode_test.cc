#include "gpipe/internal/threads/float_mode.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <thread>

namespace gpipe::internal {
namespace {

// Whether this thread flushes denormals: half of the smallest normal number is zero then.
bool flushes() {
  volatile float smallest = std::numeric_limits<float>::min();
  volatile float half = smallest / 2;
  return half == 0;
}

TEST(FloatModeTest, AnotherThreadHasItWhileTheScopeLives) {
  FloatMode changed;
  std::thread([&] {
    std::fesetround(FE_UPWARD);
    at::globalContext().setFlushDenormal(true);
    changed = FloatMode();
  }).join();
  const FloatMode usual;
  EXPECT_FALSE(changed == usual);
  {
    const FloatModeScope scope(changed);
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    EXPECT_TRUE(flushes());
    EXPECT_TRUE(FloatMode() == changed);
  }
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  EXPECT_FALSE(flushes());
  EXPECT_TRUE(FloatMode() == usual);
}

TEST(FloatModeTest, FlagsOfExceptionsAreNotPartOfIt) {
  std::feclearexcept(FE_ALL_EXCEPT);
  const FloatMode before;
  volatile float third = 1.0F;
  third = third / 3;
  EXPECT_NE(std::fetestexcept(FE_INEXACT), 0);
  EXPECT_TRUE(FloatMode() == before);
}

}  // namespace
}  // namespace gpipe::internal
