#include "experiments/common/output_path.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace gpipe::experiments {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(OutputPath, RelativeGoesWhereTheUserStood) {
  setenv("BUILD_WORKING_DIRECTORY", "/home/ada/project", 1);
  EXPECT_EQ(output_path("out/table.json"), "/home/ada/project/out/table.json");
  EXPECT_EQ(output_path("../table.json"), "/home/ada/table.json");
  EXPECT_EQ(output_path("/var/table.json"), "/var/table.json");
  EXPECT_EQ(output_path(""), "");
}

TEST(OutputPath, UnchangedOutsideBazelRun) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(output_path("out/table.json"), "out/table.json");
}

TEST(WriteFileAtomically, ReplacesAndCreatesFolders) {
  const std::string path = testing::TempDir() + "/new/folder/file.txt";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(read(path), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(WriteFileAtomically, SaysWhatCannotBeWritten) {
  const std::string file = testing::TempDir() + "/plain_file";
  write_file_atomically(file, "x");
  try {
    write_file_atomically(file + "/below", "y");
    FAIL() << "a file was taken for a folder";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("plain_file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gpipe::experiments
