#include "command/wrong_value.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace gpipe::command {
namespace {

TEST(WrongValue, NamesTheFlagAndWhatWasGiven) {
  EXPECT_EQ(flag_text("model", std::string("unet:5,64")), "--model=unet:5,64");
  EXPECT_STREQ(wrong_value("scale", "big", "give smoke, small or full").what(),
               "--scale=big: give smoke, small or full");
  EXPECT_STREQ(wrong_value("steps", int64_t{-1}, "give a number from 0").what(),
               "--steps=-1: give a number from 0");
}

TEST(WrongValue, NumbersAreAsPeopleWriteThem) {
  EXPECT_EQ(flag_text("timeout", 0.5), "--timeout=0.5");
  EXPECT_EQ(flag_text("device_gib", 1e-10), "--device_gib=1e-10");
  EXPECT_EQ(flag_text("tflops", 2e12), "--tflops=2e+12");
}

TEST(WrongValue, ShowsOnOneLineWhatATerminalWouldObey) {
  EXPECT_EQ(flag_text("model", "a\nb\x1b[31m\xff"), "--model=a\\x0ab\\x1b[31m\\xff");
}

}  // namespace
}  // namespace gpipe::command
