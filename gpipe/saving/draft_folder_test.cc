#include "gpipe/saving/draft_folder.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string new_path() {
  static int count = 0;
  return ::testing::TempDir() + "/draft" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Another process' draft would have another number.
std::string draft_of(const std::string& place) {
  return place + ".draft-" + std::to_string(getpid());
}

void write(const std::string& place, const std::string& text) {
  DraftFolder folder(place, {"a", "b"});
  put(folder.file("a"), text);
  put(folder.file("b"), text);
  folder.commit();
}

TEST(DraftFolder, TakesItsPlaceWithAllFiles) {
  const std::string place = new_path();
  write(place + "/", "one");
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_EQ(contents(place + "/b"), "one");
  EXPECT_FALSE(exists(draft_of(place)));
}

TEST(DraftFolder, ReplacesAnOldOne) {
  const std::string place = new_path();
  write(place, "one");
  write(place, "two");
  EXPECT_EQ(contents(place + "/a"), "two");
  EXPECT_FALSE(exists(draft_of(place)));
}

TEST(DraftFolder, IsNotSeenBeforeItIsCommitted) {
  const std::string place = new_path();
  write(place, "one");
  {
    DraftFolder folder(place, {"a", "b"});
    put(folder.file("a"), "two");
    EXPECT_EQ(contents(place + "/a"), "one");
  }
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_FALSE(exists(draft_of(place)));
}

TEST(DraftFolder, ThatACrashHasLeftIsMadeAnew) {
  const std::string place = new_path();
  mkdir(draft_of(place).c_str(), 0777);
  put(draft_of(place) + "/a", "half");
  write(place, "one");
  EXPECT_EQ(contents(place + "/a"), "one");
}

TEST(DraftFolder, OverwritesNothingOfSomebodyElses) {
  const std::string place = new_path();
  mkdir(place.c_str(), 0777);
  put(place + "/thesis.tex", "mine");
  EXPECT_THAT([&] { write(place, "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("thesis.tex")));
  EXPECT_EQ(contents(place + "/thesis.tex"), "mine");
  const std::string file = new_path();
  put(file, "mine");
  EXPECT_THAT([&] { write(file, "one"); }, ThrowsMessage<c10::ValueError>(HasSubstr("no folder")));
  EXPECT_EQ(contents(file), "mine");
  EXPECT_THAT([&] { write("", "one"); }, ThrowsMessage<c10::ValueError>(HasSubstr("empty")));
}

TEST(DraftFolder, SaysWhereItCannotBe) {
  const std::string place = new_path() + "/missing/run";
  EXPECT_THAT([&] { write(place, "one"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace gpipe::internal
