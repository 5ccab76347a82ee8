#include "machine/memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

namespace gpipe::machine {
namespace {

TEST(AvailableMemory, IsSomeOnAMachineThatRunsATest) {
  EXPECT_GT(available_memory(), int64_t{64} << 20);
}

TEST(BytesOfLine, ReadsTheLineOfThatNameBehindLinesOfText) {
  const std::string file = ::testing::TempDir() + "/status";
  std::ofstream(file) << "Name:\tprogram\nVmDataMost:\t      9 kB\nVmData:\t     12 kB\nThreads:\t";
  EXPECT_EQ(bytes_of_line(file, "VmData:"), 12 * 1024);
  EXPECT_EQ(bytes_of_line(file, "Name:"), std::nullopt);
  EXPECT_EQ(bytes_of_line(file, "Threads:"), std::nullopt);
  EXPECT_EQ(bytes_of_line(file, "VmSwap:"), std::nullopt);
  EXPECT_EQ(bytes_of_line(file + ".none", "VmData:"), std::nullopt);
}

}  // namespace
}  // namespace gpipe::machine
