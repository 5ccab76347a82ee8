#include "command/flag_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace gpipe::command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(CheckChunks, AreAtMostTheRows) {
  EXPECT_NO_THROW(check_chunks(4, 4));
  EXPECT_THAT([] { check_chunks(5, 4); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "--chunks=5: a mini-batch of 4 rows cannot be cut into more micro-batches; give "
                  "at most 4"));
}

TEST(InRange, TheEndsAreInIt) {
  EXPECT_EQ(in_range("workers", 1, 1, 5), 1);
  EXPECT_EQ(in_range("workers", 5, 1, 5), 5);
  EXPECT_EQ(in_range("workers", kNoMost, 1), kNoMost);
}

TEST(InRange, TheMessageHasTheRange) {
  EXPECT_THAT(
      [] { in_range("workers", 6, 1, 5); },
      ThrowsMessage<std::invalid_argument>(StrEq("--workers=6: give a number from 1 to 5")));
  EXPECT_THAT([] { in_range("chunks", 0, 1); },
              ThrowsMessage<std::invalid_argument>(StrEq("--chunks=0: give a number from 1 on")));
}

TEST(InRange, AFlagThatIsLeftOutHasNoValue) {
  EXPECT_EQ(in_range("chunks", std::optional<int64_t>(), 1), std::nullopt);
  EXPECT_EQ(in_range("chunks", std::optional<int64_t>(4), 1), 4);
  EXPECT_THAT([] { in_range("chunks", std::optional<int64_t>(0), 1); },
              ThrowsMessage<std::invalid_argument>(StrEq("--chunks=0: give a number from 1 on")));
}

TEST(AtLeast, TheMessageNamesTheFlag) {
  EXPECT_EQ(at_least("contention", 1, 1), 1);
  EXPECT_EQ(at_least("dropout", 0.5, 0, 0.99), 0.5);
  for (const double wrong : {-0.5, 1e300, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT([=] { at_least("latency_us", wrong, 0); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(": give a number from 0 to 1e+09")));
  }
  EXPECT_THAT(
      [] { at_least("dropout", 1, 0, 0.99); },
      ThrowsMessage<std::invalid_argument>(StrEq("--dropout=1: give a number from 0 to 0.99")));
}

TEST(FileFlags, AnOutputIsAPathThatCanBeWritten) {
  FileFlags files;
  EXPECT_EQ(files.output("json", ""), "");
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "/out.json";
  EXPECT_EQ(files.output("json", path), path);
  EXPECT_FALSE(std::filesystem::exists(path)) << "nothing is written yet";
  EXPECT_THAT([&] { files.output("svg", folder); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("--svg"), HasSubstr(folder))));
  EXPECT_THAT([&] { files.output("svg", "--explain"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("its file is missing")));
  EXPECT_THAT([&] { files.input("profile", "--explain"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("its file is missing")));
}

TEST(FileFlags, NoResultIsWrittenOverAnother) {
  const std::string folder = ::testing::TempDir();
  FileFlags files;
  files.output("svg", folder + "/one");
  EXPECT_THAT([&] { files.output("json", folder + "/./one"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(" are the same file: give each")));
  files.output("json", folder + "/other");
  files.output("trace", "/dev/null");
  EXPECT_NO_THROW(files.output("results", "/dev/null"));
}

TEST(FileFlags, NoResultIsWrittenOverWhatIsRead) {
  const std::string path = ::testing::TempDir() + "/read";
  std::ofstream(path) << "in it";
  FileFlags files;
  EXPECT_EQ(files.contents("profile", path), "in it");
  EXPECT_EQ(files.input("more", path), path) << "both are only read";
  EXPECT_THAT([&] { files.output("json", path); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("what is read would be lost when the result is written")));
  FileFlags written;
  written.output("json", path);
  EXPECT_THROW(written.input("profile", path), std::invalid_argument);
}

TEST(FileFlags, WhatCannotBeReadIsWrongUsage) {
  EXPECT_THAT([] { FileFlags().contents("file", ::testing::TempDir()); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("--file="), HasSubstr("it is a folder"))));
  EXPECT_THAT([] { FileFlags().contents("file", "/nowhere"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("No such file")));
}

}  // namespace
}  // namespace gpipe::command
