#include "command/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

#include "command/made_folders.h"

namespace gpipe::command {
namespace {

using ::testing::EndsWith;
using ::testing::ThrowsMessage;

int64_t files_in(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

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
  EXPECT_EQ(files_in(::testing::TempDir() + "/new/folder"), 1);
}

TEST(WriteFileAtomically, LeavesTheFilesOfOthersAlone) {
  const std::string folder = ::testing::TempDir() + "/others";
  const std::string path = folder + "/table.json";
  write_file_atomically(path + ".part", "mine");
  check_writable_file("--json", path);
  check_writable_folder("--json", folder);
  write_file_atomically(path, "x");
  EXPECT_THROW(write_file_atomically(path + "/below", "y"), std::runtime_error);
  EXPECT_EQ(read(path + ".part"), "mine");
  EXPECT_EQ(files_in(folder), 2);
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

TEST(WriteFileAtomically, AFullDiskLeavesTheOldFileAndNothingElse) {
  const std::string folder = ::testing::TempDir() + "/full";
  const std::string path = folder + "/kept.txt";
  write_file_atomically(path, "old");
  // As on a full disk, writing fails: the limit lets no file grow beyond 4096 bytes.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_file_atomically(path, std::string(10'000, 'n')), std::runtime_error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(files_in(folder), 1);
}

TEST(ReadFile, GivesAllOrSaysWhyNot) {
  const std::string path = ::testing::TempDir() + "/bytes";
  const std::string bytes = std::string(100'000, 'a') + std::string("\0\xff\n", 3);
  write_file_atomically(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  EXPECT_EQ(read_file("/dev/null"), "");
  EXPECT_EQ(read_given_file(path), bytes);
  EXPECT_THROW(read_given_file("/dev/null"), std::invalid_argument);
  EXPECT_THROW(read_given_file(::testing::TempDir()), std::invalid_argument);
  EXPECT_THAT([] { read_file(::testing::TempDir()); },
              ThrowsMessage<std::runtime_error>(EndsWith(": it is a folder")));
  EXPECT_THAT(
      [] { read_file("/nowhere/a\nb"); },
      ThrowsMessage<std::runtime_error>("cannot read /nowhere/a\\x0ab: No such file or directory"));
}

TEST(SameFile, LooksThroughLinksAndNames) {
  const std::string folder = ::testing::TempDir() + "/same";
  const std::string path = folder + "/a";
  EXPECT_TRUE(same_file(path, folder + "/../same/a"))
      << "paths are compared even if the file does not exist yet";
  EXPECT_FALSE(same_file(path, folder + "/b"));
  write_file_atomically(path, "");
  std::filesystem::create_hard_link(path, folder + "/hard");
  std::filesystem::create_symlink("a", folder + "/soft");
  EXPECT_TRUE(same_file(path, folder + "/hard"));
  EXPECT_TRUE(same_file(folder + "/soft", path));
  EXPECT_FALSE(same_file("/dev/null", "/dev/null"))
      << "/dev/null takes any number of results, so it never counts as the same file";
}

TEST(MadeFolders, AreToldOrRemovedIfNothingIsInThem) {
  const std::string folder =
      std::filesystem::weakly_canonical(::testing::TempDir() + "/made").string();
  std::filesystem::create_directory(folder);
  remove_made_folders();  // made by other tests
  check_writable_folder("--run", folder + "/a/b");
  check_writable_file("--json", folder + "/c/d/table.json");
  check_writable_folder("--run", folder + "/e/f");
  std::ofstream(folder + "/e/f/table.json") << "x";
  std::filesystem::create_directory(folder + "/g");
  check_writable_folder("--run", folder + "/g");
  remove_made_folders();
  EXPECT_FALSE(std::filesystem::exists(folder + "/a"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/c"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/e/f/table.json"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/g")) << "was there before";
  check_writable_folder("--run", folder + "/a/b");
  ::testing::internal::CaptureStderr();
  tell_made_folders();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "created the folder " + folder + "/a/b\n");
  remove_made_folders();
  EXPECT_TRUE(std::filesystem::exists(folder + "/a/b"))
      << "tell_made_folders() ends the list, so remove_made_folders() must not remove this one";
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
