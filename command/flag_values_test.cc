#include "command/flag_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <stdexcept>

namespace gpipe::command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

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
  EXPECT_THAT([] { at_least("latency_us", -0.5, 0); },
              ThrowsMessage<std::invalid_argument>(
                  StrEq("--latency_us=-0.5: give a finite number of at least 0")));
}

TEST(OutputFile, IsAPathThatCanBeWritten) {
  EXPECT_EQ(output_file("json", ""), "");
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "/out.json";
  EXPECT_EQ(output_file("json", path), path);
  EXPECT_FALSE(std::filesystem::exists(path)) << "nothing is written yet";
  EXPECT_THAT([&] { output_file("json", folder); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("--json"), HasSubstr(folder))));
  EXPECT_THAT([] { output_file("json", "--explain"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("its file is missing")));
}

}  // namespace
}  // namespace gpipe::command
