#include "command/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

namespace gpipe::command {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(UserPath, RelativeGoesWhereTheUserStood) {
  setenv("BUILD_WORKING_DIRECTORY", "/home/ada/project", 1);
  EXPECT_EQ(user_path("out/table.json"), "/home/ada/project/out/table.json");
  EXPECT_EQ(user_path("../table.json"), "/home/ada/table.json");
  EXPECT_EQ(user_path("/var/table.json"), "/var/table.json");
  EXPECT_EQ(user_path(""), "");
}

TEST(UserPath, UnchangedOutsideBazelRun) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(user_path("out/table.json"), "out/table.json");
}

TEST(WriteFileAtomically, ReplacesAndCreatesFolders) {
  const std::string path = ::testing::TempDir() + "/new/folder/file.txt";
  std::filesystem::remove_all(::testing::TempDir() + "/new");
  ::testing::internal::CaptureStderr();
  write_file_atomically(path, "first");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("created the folder "), std::string::npos) << said;
  EXPECT_NE(said.find("/new/folder\n"), std::string::npos) << said;
  ::testing::internal::CaptureStderr();
  write_file_atomically(path, "second");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(read(path), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(WriteFileAtomically, SaysWhatCannotBeWritten) {
  const std::string file = ::testing::TempDir() + "/plain_file";
  write_file_atomically(file, "x");
  try {
    write_file_atomically(file + "/below", "y");
    FAIL() << "a file was taken for a folder";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("plain_file"), std::string::npos) << error.what();
  }
}

TEST(WriteFileAtomically, LinksStayAndWhatIsNoFileIsWrittenTo) {
  const std::string folder = ::testing::TempDir() + "/links";
  write_file_atomically(folder + "/real.txt", "old");
  std::filesystem::create_symlink("real.txt", folder + "/link.txt");
  write_file_atomically(folder + "/link.txt", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link.txt"));
  EXPECT_EQ(read(folder + "/real.txt"), "new");

  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  check_writable_file("--json", folder + "/pipe");
  std::string got;
  std::thread reader([&] { got = read(folder + "/pipe"); });
  write_file_atomically(folder + "/pipe", "through");
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(folder + "/pipe"));

  check_writable_file("--json", "/dev/null");
  write_file_atomically("/dev/null", "nothing");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THROW(write_file_atomically("/dev/full", "much"), std::runtime_error);
}

// /dev/full fails when the file is closed, as a full disk may.
TEST(WriteFileAtomically, AFullDiskLeavesTheOldFileAndNothingElse) {
  const std::string path = ::testing::TempDir() + "/kept.txt";
  write_file_atomically(path, "old");
  std::filesystem::create_symlink("/dev/full", path + ".part");
  EXPECT_THROW(write_file_atomically(path, "new"), std::runtime_error);
  EXPECT_EQ(read(path), "old");
  EXPECT_FALSE(std::filesystem::is_symlink(path + ".part"));
}

TEST(CheckWritable, SaysWhatWillFailAndLeavesNothing) {
  const std::string folder = ::testing::TempDir() + "/writable/below";
  check_writable_file("--json", folder + "/table.json");
  check_writable_folder("--checkpoint_dir", folder);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const std::string file = ::testing::TempDir() + "/no_folder";
  write_file_atomically(file, "x");
  try {
    check_writable_folder("--checkpoint_dir", file);
    FAIL() << "a file was taken for a folder";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("--checkpoint_dir=" + file), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(check_writable_file("--json", folder), std::invalid_argument) << "a folder";
  EXPECT_THROW(check_writable_file("--json", "/proc/table.json"), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::command
