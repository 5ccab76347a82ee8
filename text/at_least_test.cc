#include "text/at_least.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>

namespace gpipe::text {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(AtLeast, TheLeastIsEnough) {
  EXPECT_EQ(at_least(0.5, 0.5, "--slow=0.5"), 0.5);
  EXPECT_EQ(at_least(int64_t{1}, int64_t{1}, "--workers=1"), 1);
}

TEST(AtLeast, TheMessageSaysWhatWasGivenAndWhatToGive) {
  EXPECT_THAT([] { at_least(0.001, 0.0005, "--timeout=0.0005"); },
              ThrowsMessage<std::invalid_argument>(
                  StrEq("--timeout=0.0005: give a finite number of at least 0.001")));
  EXPECT_THAT([] { at_least(int64_t{1}, int64_t{0}, "--workers=0"); },
              ThrowsMessage<std::invalid_argument>(
                  StrEq("--workers=0: give a whole number of at least 1")));
}

TEST(AtLeast, WhatIsNotFiniteIsRefused) {
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(at_least(0.0, value, "--latency_us"), std::invalid_argument) << value;
  }
}

}  // namespace
}  // namespace gpipe::text
