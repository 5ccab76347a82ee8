#include "command/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <limits>
#include <sstream>
#include <string>

namespace gpipe::command {
namespace {

using std::chrono::milliseconds;

class ProgressTest : public ::testing::Test {
 protected:
  ProgressOptions options(bool terminal) {
    ProgressOptions options;
    options.terminal = terminal;
    options.now = [this] { return now_; };
    return options;
  }
  void advance(int count) { now_ += milliseconds(count); }

  std::chrono::steady_clock::time_point now_;
  std::ostringstream out_;
};

TEST_F(ProgressTest, PlainLinesComeAtIntervals) {
  Progress progress(out_, "epoch 1/2", 200, options(false));
  for (int done = 1; done <= 100; ++done) {
    advance(250);
    progress.update(done, "loss 1.5");
  }
  progress.finish();
  EXPECT_EQ(out_.str(),
            "epoch 1/2 20% 40/200 | left 0:40 | loss 1.5\n"
            "epoch 1/2 40% 80/200 | left 0:30 | loss 1.5\n");
}

TEST_F(ProgressTest, ShortLoopWritesNothingToALog) {
  {
    Progress progress(out_, "validation", 10, options(false));
    advance(500);
    progress.update(10);
  }
  EXPECT_EQ(out_.str(), "");
}

TEST_F(ProgressTest, TerminalRedrawsOneLineAndErasesIt) {
  Progress progress(out_, "train", 4, options(true));
  advance(10);
  progress.update(1);
  advance(10);
  progress.update(2);  // too soon after the line before: nothing is written
  advance(100);
  progress.update(3);
  progress.finish();
  progress.finish();
  EXPECT_EQ(out_.str(),
            "\r\x1b[Ktrain [#####...............] 25% 1/4 | left 0:00"
            "\r\x1b[Ktrain [###############.....] 75% 3/4 | left 0:00"
            "\r\x1b[K");
  EXPECT_EQ(out_.str().find('\n'), std::string::npos);
}

TEST_F(ProgressTest, TerminalLineIsCutToTheWidth) {
  ProgressOptions narrow = options(true);
  narrow.width = 21;
  Progress progress(out_, "train", 4, narrow);
  progress.update(1, "a long note");
  EXPECT_EQ(out_.str(), "\r\x1b[Ktrain [#####........");
}

TEST_F(ProgressTest, UnknownTotal) {
  Progress progress(out_, "reading", 0, options(false));
  advance(65000);
  progress.update(17);
  EXPECT_EQ(out_.str(), "reading 17 | 1:05\n");
}

TEST(CommandProgress, StopsTheWorkOnceItIsInterrupted) {
  const InterruptScope interrupt;
  Progress progress(interrupt, "work", 2);
  progress.update(1);
  std::raise(SIGINT);
  EXPECT_THROW(progress.update(2), Interrupted);
}

TEST(FormatDuration, ForPeople) {
  EXPECT_EQ(format_duration(7.4), "0:07");
  EXPECT_EQ(format_duration(185), "3:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "-");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(IsTerminal, APipeIsNone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(is_terminal(ends[1]));
  EXPECT_FALSE(terminal_options(ends[1]).terminal);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace gpipe::command
