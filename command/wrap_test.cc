#include "command/wrap.h"

#include <gtest/gtest.h>

namespace gpipe::command {
namespace {

TEST(Wrap, LinesFitAndAreIndented) {
  EXPECT_EQ(wrap("one two  three four", 10, 0, 2), "one two\n  three\n  four\n");
  EXPECT_EQ(wrap("one two", 7, 0, 2), "one two\n") << "just fits";
  EXPECT_EQ(wrap("one two", 6, 0, 2), "one\n  two\n");
  EXPECT_EQ(wrap("one two three", 10, 4, 4), "    one\n    two\n    three\n");
}

TEST(Wrap, ALongerWordStandsAlone) {
  EXPECT_EQ(wrap("a muchlongerword b", 6, 0, 2), "a\n  muchlongerword\n  b\n");
  EXPECT_EQ(wrap("", 6, 0, 2), "\n");
}

TEST(WrapLines, KeepsLinesThatFit) {
  const std::string text = "one\ntwo three\n\n  run it  --now\n";
  EXPECT_EQ(wrap_lines(text, 15), text);
  EXPECT_EQ(wrap_lines("one", 15), "one\n");
}

TEST(WrapLines, FillsAParagraphWithALongLineAndIndentsCommands) {
  EXPECT_EQ(wrap_lines("one two three\nfour\n\nfive\nsix\n  run it --now\n  it\nend", 10),
            "one two\nthree four\n\nfive\nsix\n  run it \\\n      --now\n  it\nend\n");
}

TEST(Wrap, CountsWhatIsSeen) {
  EXPECT_EQ(display_width("21.99±0.13"), 10u);
  EXPECT_EQ(wrap("±± ±±", 5, 0, 0), "±± ±±\n");
}

}  // namespace
}  // namespace gpipe::command
