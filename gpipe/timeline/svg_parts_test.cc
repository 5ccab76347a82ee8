#include "gpipe/timeline/svg_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;

TEST(SvgText, EscapesWhatIsMarkup) {
  EXPECT_EQ(svg_text("a < b > c & \"d\""), "a &lt; b &gt; c &amp; \"d\"");
  EXPECT_EQ(svg_text("U-Net (5, 64) µs ÷ 模型 \U0001F600"), "U-Net (5, 64) µs ÷ 模型 \U0001F600");
}

TEST(SvgText, ReplacesWhatNoSvgMayHold) {
  EXPECT_EQ(svg_text("a\x01\tb\n\x7F\xC2\x80"), "a\uFFFD b \uFFFD\uFFFD");
  EXPECT_EQ(svg_text(std::string("a\0b", 3)), "a\uFFFDb");
  EXPECT_EQ(svg_text("\x1B[31mred"), "\uFFFD[31mred") << "a terminal's color";
  EXPECT_EQ(svg_text("\xEF\xBF\xBF"), "\uFFFD") << "U+FFFF";
}

TEST(SvgText, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(svg_text("caf\xE9"), "caf\uFFFD") << "cut off";
  EXPECT_EQ(svg_text("\xE9t\xE9"), "\uFFFDt\uFFFD") << "Latin-1";
  EXPECT_EQ(svg_text("\x80x"), "\uFFFDx");
  EXPECT_EQ(svg_text("\xC0\xBC"), "\uFFFD\uFFFD") << "an overlong <";
  EXPECT_EQ(svg_text("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD") << "half of a pair";
  EXPECT_EQ(svg_text("\xFF"), "\uFFFD");
}

TEST(SvgParts, AKeyTellsWhereTheNextOneStands) {
  EXPECT_THAT(svg_begin(10, 20, ".a{}"), HasSubstr("viewBox=\"0 0 10 20\" width=\"10\""));
  EXPECT_THAT(svg_begin(10, 20, ".a{}"), HasSubstr(".5}.a{}@media"));
  EXPECT_THAT(svg_title(8, "<x>"), HasSubstr("x=\"8\" y=\"24\" font-size=\"15\">&lt;x&gt;"));
  std::string svg;
  EXPECT_EQ(add_svg_key("fill=\"#fff\"", "four", 100, svg), 100 + 32 + 28);
  EXPECT_THAT(svg, HasSubstr("height=\"11\" fill=\"#fff\"/><text x=\"115\" y=\"48\">four"));
}

TEST(SvgParts, MarksAreRoundNumbers) {
  EXPECT_DOUBLE_EQ(distance_of_marks(10, 10), 1);
  EXPECT_DOUBLE_EQ(distance_of_marks(10.1, 10), 2);
  EXPECT_DOUBLE_EQ(distance_of_marks(10.1, 4), 5);
  EXPECT_DOUBLE_EQ(distance_of_marks(0, 4), 1e-9);
}

}  // namespace
}  // namespace gpipe::internal
