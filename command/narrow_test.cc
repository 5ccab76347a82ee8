#include "command/narrow.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

namespace gpipe::command {
namespace {

TEST(Narrow, BreaksWideLinesBetweenWordsAndKeepsOthers) {
  EXPECT_EQ(narrow("error: one two three four", 12), "error: one\n  two three\n  four");
  EXPECT_EQ(narrow("one two\n  --rank:  4, 5 and 6 now\n  --b: 1", 12),
            "one two\n  --rank: 4,\n    5 and 6\n    now\n  --b: 1");
  EXPECT_EQ(narrow("a word_that_is_too_long b", 10), "a\n  word_that_is_too_long\n  b");
  EXPECT_EQ(narrow("", 10), "");
  EXPECT_EQ(narrow("as  it is", 9), "as  it is");
}

TEST(Narrow, OnlyATerminalGetsNarrowLines) {
  std::string text = "error:";
  for (int k = 0; k < 30; ++k) text += " word";
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(narrow_on_terminal(text, pipe_ends[1]), text);
  int master = -1, terminal = -1;
  winsize size = {};
  size.ws_row = 24;
  for (const int columns : {40, 80, 200}) {
    size.ws_col = static_cast<unsigned short>(columns);
    ASSERT_EQ(openpty(&master, &terminal, nullptr, nullptr, &size), 0);
    setenv("TERM", "xterm", /*overwrite=*/1);
    EXPECT_EQ(narrow_on_terminal(text, terminal), narrow(text, columns == 40 ? 40 : 80)) << columns;
    setenv("TERM", "dumb", /*overwrite=*/1);
    EXPECT_EQ(narrow_on_terminal(text, terminal), text);
    close(master);
    close(terminal);
  }
}

}  // namespace
}  // namespace gpipe::command
