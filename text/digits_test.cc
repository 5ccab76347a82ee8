#include "text/digits.h"

#include "gtest/gtest.h"

namespace gpipe::text {
namespace {

TEST(Digits, AreThreeOrMore) {
  EXPECT_EQ(digits(0), "0.000");
  EXPECT_EQ(digits(0.1234), "0.123");
  EXPECT_EQ(digits(1.234), "1.23");
  EXPECT_EQ(digits(12.34), "12.3");
  EXPECT_EQ(digits(123.4), "123");
  EXPECT_EQ(digits(1234.5), "1234");
  EXPECT_EQ(digits(-12.34), "-12.3");
}

TEST(Digits, AreThoseOfTheNumberThatIsShown) {
  EXPECT_EQ(digits(9.994), "9.99");
  EXPECT_EQ(digits(9.996), "10.0");
  EXPECT_EQ(digits(99.94), "99.9");
  EXPECT_EQ(digits(99.96), "100");
  EXPECT_EQ(digits(-99.96), "-100");
}

TEST(Exact, HasNoMoreDigitsThanItNeeds) {
  EXPECT_EQ(exact(0.1), "0.1");
  EXPECT_EQ(exact(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(exact(2), "2");
  EXPECT_EQ(exact(-1e300), "-1e+300");
  EXPECT_EQ(exact(0.1 + 0.2), "0.30000000000000004");
}

}  // namespace
}  // namespace gpipe::text
