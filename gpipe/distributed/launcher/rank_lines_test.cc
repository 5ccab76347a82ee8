#include "gpipe/distributed/launcher/rank_lines.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

namespace gpipe::distributed {
namespace {

TEST(RankLines, OnlyWholeLinesComeOut) {
  RankLines lines(3);
  EXPECT_EQ(lines.add("one"), "");
  EXPECT_EQ(lines.add(" line\nand a"), "[3] one line\n");
  EXPECT_EQ(lines.add("nother\n\nend"), "[3] and another\n[3] \n");
  EXPECT_EQ(lines.finish(), "[3] end\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(RankLines, AnyBytes) {
  RankLines lines(0);
  EXPECT_EQ(lines.add(std::string("a\0\xff\r\n", 5)), std::string("[0] a\0\xff\r\n", 9));
}

TEST(RankLines, ALineWithoutEndIsCut) {
  RankLines lines(0);
  const std::string longest(RankLines::kLongestLine, 'x');
  EXPECT_EQ(lines.add(longest + "yy"), "[0] " + longest + "\n");
  EXPECT_EQ(lines.finish(), "[0] yy\n");
}

class OutputQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    ASSERT_EQ(pipe(ends_), 0);
  }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }

  std::string read_some() {
    std::string text(1 << 20, '\0');
    const ssize_t size = read(ends_[0], text.data(), text.size());
    text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return text;
  }

  int ends_[2] = {-1, -1};
};

TEST_F(OutputQueueTest, AReaderThatWaitsIsNotWaitedFor) {
  OutputQueue queue(ends_[1]);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + ",";
  queue.push(text);
  queue.write_some();
  EXPECT_FALSE(queue.empty());  // a pipe holds only 64 KiB, so some bytes are left
  std::string got;
  while (got.size() < text.size()) {
    got += read_some();
    queue.write_some();
  }
  EXPECT_EQ(got, text);
  EXPECT_TRUE(queue.empty());
}

TEST_F(OutputQueueTest, IsFullUntilItIsWritten) {
  OutputQueue queue(ends_[1]);
  queue.push(std::string(1 << 20, 'x'));
  EXPECT_TRUE(queue.is_full());
  while (!queue.empty()) {
    queue.write_some();
    read_some();
  }
  EXPECT_FALSE(queue.is_full());
}

TEST_F(OutputQueueTest, WithoutAReaderEverythingIsDropped) {
  OutputQueue queue(ends_[1]);
  close(ends_[0]);
  queue.push("text");
  queue.write_some();
  EXPECT_TRUE(queue.empty());
  queue.push("more");
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.error(), 0);  // not an error, because the reader has gone
  ends_[0] = dup(ends_[1]);
}

TEST_F(OutputQueueTest, AFullDiskIsRemembered) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  OutputQueue queue(full);
  queue.push("text");
  queue.write_some();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.error(), ENOSPC);
  close(full);
}

TEST_F(OutputQueueTest, KnowsWhatLeadsToOnePlace) {
  const int same = dup(ends_[1]);
  EXPECT_TRUE(is_same_file(ends_[1], same));
  close(same);
  EXPECT_FALSE(is_same_file(ends_[1], STDIN_FILENO));
  EXPECT_FALSE(is_same_file(-1, -1));
}

}  // namespace
}  // namespace gpipe::distributed
