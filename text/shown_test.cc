#include "text/shown.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::text {
namespace {

TEST(Shown, LeavesWhatIsPrinted) {
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("U-Net (5, 64) µs ÷ 模型 \U0001F600"), "U-Net (5, 64) µs ÷ 模型 \U0001F600");
  EXPECT_EQ(shown("a\\n"), "a\\n");
}

TEST(Shown, TellsBytesThatAreNot) {
  EXPECT_EQ(shown("a\nb\tc\r"), "a\\x0ab\\x09c\\x0d");
  EXPECT_EQ(shown(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(shown("\x1B[31mred\x7F"), "\\x1b[31mred\\x7f") << "a terminal's color";
  EXPECT_EQ(shown("\xC2\x80"), "\\xc2\\x80") << "a control character of 8 bits";
  EXPECT_EQ(shown("\u2028\u202E\u2066"), "\\xe2\\x80\\xa8\\xe2\\x80\\xae\\xe2\\x81\\xa6");
}

TEST(Shown, TellsBytesThatAreNotUtf8) {
  EXPECT_EQ(shown("caf\xE9"), "caf\\xe9") << "Latin-1";
  EXPECT_EQ(shown("\xFFw"), "\\xffw");
  EXPECT_EQ(shown("\xC0\xBC"), "\\xc0\\xbc") << "an overlong <";
  EXPECT_EQ(shown("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "more than there are";
  EXPECT_EQ(shown("\xE6\xA8"), "\\xe6\\xa8") << "cut off";
}

TEST(Shown, LetsChooseWhatElse) {
  EXPECT_EQ(shown("line\n\tnext\x01", Letters::kAllOfLines), "line\n\tnext\\x01");
  EXPECT_EQ(shown("\uFF10", Letters::kAscii), "\\xef\\xbc\\x90") << "a wide 0";
}

TEST(Quoted, CutsLongTextsBetweenCharacters) {
  EXPECT_EQ(text::quoted("a\nb"), "'a\\x0ab'");
  EXPECT_EQ(text::quoted(std::string(80, 'a')), "'" + std::string(80, 'a') + "'");
  EXPECT_EQ(text::quoted(std::string(81, 'a')), "'" + std::string(80, 'a') + "...'");
  EXPECT_EQ(text::quoted(std::string(79, 'a') + "\U0001F600b"),
            "'" + std::string(79, 'a') + "...'");
}

TEST(Utf8Bytes, EndsWhereItIsNot) {
  EXPECT_EQ(utf8_bytes("ab\n\u00fc"), 5u);
  EXPECT_EQ(utf8_bytes("ab\xff"), 2u);
  EXPECT_EQ(utf8_bytes("\xff"), 0u);
}

}  // namespace
}  // namespace gpipe::text
