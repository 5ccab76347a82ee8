#include "gpipe/runtime/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;

enum class Color : uint8_t { kRed, kBlue };

struct Inner {
  Color color = Color::kRed;
  std::string text;
};
auto fields(Inner& inner) { return std::tie(inner.color, inner.text); }

struct Outer {
  int64_t number = 0;
  bool is_so = false;
  std::chrono::milliseconds limit{0};
  std::vector<Inner> inner;
  std::vector<std::pair<std::string, double>> pairs;
};
auto fields(Outer& outer) {
  return std::tie(outer.number, outer.is_so, outer.limit, outer.inner, outer.pairs);
}

const Outer kOuter{-3,
                   true,
                   std::chrono::milliseconds(7),
                   {{Color::kBlue, "a"}, {Color::kRed, std::string("\0b", 2)}},
                   {{"", 0.5}, {"c", -1}}};

template <typename T>
std::string refusal(const std::string& bytes) {
  try {
    (void)from_bytes<T>(bytes, "the letter");
  } catch (const DamagedMessage& damaged) {
    return damaged.what();
  }
  return "";
}

TEST(Bytes, ArriveAsTheyWereWritten) {
  const auto outer = from_bytes<Outer>(to_bytes(kOuter));
  EXPECT_EQ(outer.number, -3);
  EXPECT_TRUE(outer.is_so);
  EXPECT_EQ(outer.limit, kOuter.limit);
  ASSERT_EQ(outer.inner.size(), 2);
  EXPECT_EQ(outer.inner[0].color, Color::kBlue);
  EXPECT_EQ(outer.inner[1].text, kOuter.inner[1].text);
  EXPECT_EQ(outer.pairs, kOuter.pairs);
}

TEST(Bytes, ThatAreCutAnywhereAreRefused) {
  const std::string whole = to_bytes(kOuter);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(refusal<Outer>(whole.substr(0, size)), HasSubstr("the letter: ")) << size;
  }
}

TEST(Bytes, TheRefusalSaysWhatIsWrong) {
  EXPECT_EQ(refusal<int64_t>("abc"), "the letter: 8 bytes are expected, but only 3 follow");
  EXPECT_EQ(refusal<bool>("\2"), "the letter: 2 is neither yes nor no");
  EXPECT_EQ(refusal<std::string>(to_bytes("a") + "xy"), "the letter: 2 bytes follow its end");
  // No memory is allocated for a size that the bytes cannot have.
  EXPECT_EQ(refusal<std::vector<std::string>>(to_bytes(UINT64_MAX)),
            "the letter: a size of 18446744073709551615 is announced, but only 0 bytes follow");
}

}  // namespace
}  // namespace gpipe::internal
