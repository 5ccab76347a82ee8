#include "balance/costs/autocast.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Autocast, NamesTheGuardOfThisThread) {
  EXPECT_EQ(autocast_name(c10::kCPU), "");
  EXPECT_EQ(autocast_name(c10::kMeta), "") << "the meta device has no autocast guard here";
  {
    const AutocastGuard outer(c10::kCPU, parse_autocast("bfloat16"));
    EXPECT_EQ(autocast_name(c10::kCPU), "bfloat16");
    EXPECT_EQ(autocast_name(c10::kCUDA), "");
    {
      const AutocastGuard inner(c10::kCPU, parse_autocast("float16"));
      const AutocastGuard unchanged(c10::kCPU, parse_autocast(""));
      EXPECT_EQ(autocast_name(c10::kCPU), "float16");
    }
    EXPECT_EQ(autocast_name(c10::kCPU), "bfloat16");
    at::autocast::set_autocast_dtype(c10::kCPU, at::kDouble);
    EXPECT_EQ(autocast_name(c10::kCPU), "double");
  }
  EXPECT_EQ(autocast_name(c10::kCPU), "");
}

TEST(AutocastErrors, SayWhatMayBeGiven) {
  EXPECT_THAT([] { parse_autocast("fp8"); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("--autocast=fp8: give bfloat16 or float16, or leave it out for none")));
}

}  // namespace
}  // namespace gpipe::balance
