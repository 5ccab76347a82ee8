#include "gpipe/saving/draft_folder.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// What the system calls below do beside their work. `at_move` runs once before a folder is moved,
// and returns the error of the move. `calls` lists the calls that were made.
std::function<int()> at_move;
std::function<int(const std::string& path)> at_sync;
std::vector<std::string>* calls = nullptr;

int move_folder(const char* from, const char* to, unsigned flags) {
  if (const auto hook = std::exchange(at_move, nullptr)) {
    if (const int error = hook()) {
      errno = error;
      return -1;
    }
  }
  if (calls != nullptr) calls->push_back(flags == 0 ? "rename" : "exchange");
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags));
}

}  // namespace

// These functions replace those of the C library in the whole program.
extern "C" int rename(const char* from, const char* to) noexcept {
  return move_folder(from, to, 0);
}
extern "C" int renameat2(int, const char* from, int, const char* to, unsigned flags) noexcept {
  return move_folder(from, to, flags);
}
extern "C" int fsync(int descriptor) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(link.c_str(), path, sizeof path - 1) > 0 && calls != nullptr) {
    calls->push_back(std::string("sync ") + path);
  }
  if (at_sync) {
    if (const int error = at_sync(path)) {
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

// A path in a new folder of its own.
std::string new_path() {
  static int count = 0;
  const std::string folder =
      ::testing::TempDir() + "/folder" + std::to_string(getpid()) + "-" + std::to_string(count++);
  EXPECT_EQ(mkdir(folder.c_str(), 0777), 0);
  return folder + "/run";
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void make_folder(const std::string& path, mode_t rights = 0777) {
  ASSERT_EQ(mkdir(path.c_str(), rights), 0) << path;
}

mode_t rights_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

// The paths of the drafts beside `place`, the path that they are drafts of.
std::vector<std::string> drafts_of(const std::string& place) {
  const std::string parent = place.substr(0, place.rfind('/'));
  std::vector<std::string> drafts;
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(parent.c_str()), closedir);
  while (const dirent* entry = readdir(opened.get())) {
    const std::string path = parent + "/" + entry->d_name;
    if (path.find(place + ".draft-") == 0) drafts.push_back(path);
  }
  return drafts;
}

void fill(const DraftFolder& folder, const std::string& text) {
  put(folder.file("a"), text);
  put(folder.file("b"), text);
}

void write(const std::string& place, const std::string& text) {
  DraftFolder folder(place, {"a", "b"});
  fill(folder, text);
  folder.commit();
}

TEST(DraftFolder, TakesItsPlaceWithAllFiles) {
  const std::string place = new_path();
  write(place + "/", "one");
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_EQ(contents(place + "/b"), "one");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, ReplacesAnOldOne) {
  const std::string place = new_path();
  make_folder(place);  // an empty folder counts as an old one, too
  write(place, "one");
  write(place, "two");
  EXPECT_EQ(contents(place + "/a"), "two");
  EXPECT_THAT(drafts_of(place), IsEmpty());
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
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, ThatACrashHasLeftIsRemovedByTheNext) {
  const std::string place = new_path();
  make_folder(place + ".draft-123");
  put(place + ".draft-123/a", "half");
  put(place + ".draft-123/b.part7.0", "half");
  write(place, "one");
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

// Each writer has its own draft, so two writers do not disturb each other. The writers may be
// threads, or processes, even with the same process number on two machines.
TEST(DraftFolder, IsItsWritersAlone) {
  const std::string place = new_path();
  DraftFolder first(place, {"a", "b"});
  fill(first, "one");
  DraftFolder second(place, {"a", "b"});
  fill(second, "two");
  EXPECT_EQ(contents(first.file("a")), "one");
  first.commit();
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_EQ(contents(second.file("a")), "two");
  second.commit();
  EXPECT_EQ(contents(place + "/b"), "two");
  write(place, "three");
  EXPECT_EQ(contents(place + "/b"), "three");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, MayLoseItsOldOneMeanwhile) {
  const std::string place = new_path();
  write(place, "one");
  DraftFolder folder(place, {"a", "b"});
  fill(folder, "two");
  ASSERT_EQ(rename(place.c_str(), (place + "-elsewhere").c_str()), 0);
  folder.commit();
  EXPECT_EQ(contents(place + "/a"), "two");
}

TEST(DraftFolder, IsNotLostIfOthersAreFaster) {
  const std::string place = new_path();
  DraftFolder folder(place, {"a", "b"});
  fill(folder, "one");
  at_move = [&] {
    write(place, "other");
    return 0;
  };
  folder.commit();
  EXPECT_EQ(contents(place + "/a"), "one");

  DraftFolder next(place, {"a", "b"});
  fill(next, "two");
  at_move = [&] {
    EXPECT_EQ(rename(place.c_str(), (place + "-elsewhere").c_str()), 0);
    return 0;
  };
  next.commit();
  EXPECT_EQ(contents(place + "/a"), "two");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

// The draft is synced before it is moved, so that a reader after a crash finds no folder without
// its files. The parent folder is synced after the move, so that a reader after commit() finds the
// new folder.
TEST(DraftFolder, IsOnTheDiskBeforeItIsSeen) {
  const std::string place = new_path();
  for (const char* move : {"rename", "exchange"}) {
    std::vector<std::string> recorded_calls;
    calls = &recorded_calls;
    write(place, "one");
    calls = nullptr;
    EXPECT_THAT(recorded_calls, ElementsAre(HasSubstr("run.draft-"), move, Not(HasSubstr("run"))));
  }
}

TEST(DraftFolder, ThatMayNotBeOnTheDiskLeavesTheOldOne) {
  const std::string place = new_path();
  write(place, "one");
  at_sync = [&](const std::string& path) { return path.find(".draft-") == path.npos ? EIO : 0; };
  EXPECT_THAT([&] { write(place, "two"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("Input/output error")));
  ASSERT_EQ(drafts_of(place).size(), 1u);
  EXPECT_EQ(contents(drafts_of(place)[0] + "/a"), "one");
  EXPECT_EQ(contents(place + "/a"), "two");
  // fsync() fails as on a file system that cannot sync folders, which is not an error.
  at_sync = [](const std::string&) { return EINVAL; };
  write(place, "three");
  at_sync = nullptr;
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, SaysThatAFileSystemCannotReplaceIt) {
  const std::string place = new_path();
  write(place, "one");
  at_move = [] { return EINVAL; };
  EXPECT_THAT([&] { write(place, "two"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("cannot replace a folder at once")));
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, IsTriedBeforehand) {
  const std::string place = new_path();
  const auto is_known = [](const std::string& name) { return name == "a" || name == "b"; };
  for (const bool has_old_one : {false, true}) {
    if (has_old_one) write(place, "one");
    EXPECT_NO_THROW(check_exchange(place, is_known));
    at_move = [] { return EINVAL; };
    EXPECT_THAT([&] { check_exchange(place, is_known); },
                ThrowsMessage<std::runtime_error>(
                    HasSubstr("Invalid argument; its file system cannot replace")));
    EXPECT_THAT(drafts_of(place), IsEmpty());
    EXPECT_EQ(exists(place), has_old_one);
  }
  EXPECT_EQ(contents(place + "/a"), "one");
}

TEST(DraftFolder, IsWholeForReadersWhileOthersWrite) {
  const std::string place = new_path();
  write(place, "start");
  std::vector<std::thread> writers;
  for (const char* text : {"one", "two"}) {
    writers.emplace_back([&place, text] {
      for (int k = 0; k < 20; ++k) write(place, text);
    });
  }
  for (int k = 0; k < 1000; ++k) ASSERT_TRUE(exists(place));
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(contents(place + "/a"), contents(place + "/b"));
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, IsTheOldOrTheNewOneAfterACrash) {
  const std::string place = new_path();
  const auto start = std::chrono::steady_clock::now();
  write(place, "0");
  const std::chrono::duration<double, std::micro> write_time =
      std::chrono::steady_clock::now() - start;
  int64_t last = 0;
  // Each child is killed later than the one before. The loop goes on until a child has written
  // something: on a busy machine the first children are killed before their first write.
  for (int k = 0; k < 24 || last == 0; ++k) {
    int pipe_ends[2] = {};
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      (void)!::write(pipe_ends[1], "", 1);
      for (int64_t next = last + 1;; ++next) write(place, std::to_string(next));
    }
    close(pipe_ends[1]);
    char begun = 0;
    EXPECT_EQ(read(pipe_ends[0], &begun, 1), 1);
    close(pipe_ends[0]);
    usleep(static_cast<useconds_t>(write_time.count() * k / 10));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child has ended by itself";
    const std::string now = contents(place + "/a");
    ASSERT_EQ(contents(place + "/b"), now);
    ASSERT_GE(std::stoll(now), last);
    last = std::stoll(now);
  }
  write(place, "whole");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, OverwritesNothingOfSomebodyElses) {
  const std::string place = new_path();
  make_folder(place);
  put(place + "/thesis.tex", "mine");
  EXPECT_THAT([&] { write(place, "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("thesis.tex")));
  EXPECT_EQ(contents(place + "/thesis.tex"), "mine");
  const std::string file = new_path();
  put(file, "mine");
  EXPECT_THAT([&] { write(file, "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("not a folder")));
  EXPECT_EQ(contents(file), "mine");
  // A folder that has the name of one of the files is not overwritten, either.
  const std::string folder = new_path();
  make_folder(folder);
  make_folder(folder + "/a");
  EXPECT_THAT([&] { write(folder, "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("a folder with 'a'")));
  EXPECT_TRUE(exists(folder + "/a"));
}

TEST(DraftFolder, OverwritesNothingThatComesLater) {
  const std::string place = new_path();
  write(place, "one");
  {
    DraftFolder folder(place, {"a", "b"});
    fill(folder, "two");
    put(place + "/thesis.tex", "mine");
    EXPECT_THAT([&] { folder.commit(); }, ThrowsMessage<c10::ValueError>(HasSubstr("thesis.tex")));
  }
  EXPECT_EQ(contents(place + "/thesis.tex"), "mine");
  EXPECT_EQ(contents(place + "/a"), "one");
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, RemovesNothingOfSomebodyElsesWithADraftsName) {
  const std::string place = new_path();
  const std::vector<std::string> theirs = {place + ".draft-" + std::to_string(getpid()),
                                           place + ".draft-0", place + ".draft-new"};
  for (const std::string& folder : theirs) {
    make_folder(folder);
    put(folder + "/a", "mine");
    if (folder != theirs.back()) put(folder + "/thesis.tex", "mine");
  }
  write(place, "one");
  for (const std::string& folder : theirs) EXPECT_EQ(contents(folder + "/a"), "mine") << folder;
}

// A new folder gets the default rights. A folder that replaces an old one gets the old one's
// rights, and so do its files: what was private stays private.
TEST(DraftFolder, HasTheRightsOfTheOldOne) {
  const std::string place = new_path();
  write(place, "one");
  make_folder(place + "-fresh");
  EXPECT_EQ(rights_of(place), rights_of(place + "-fresh"));
  ASSERT_EQ(chmod(place.c_str(), 0750), 0);
  ASSERT_EQ(chmod((place + "/a").c_str(), 0600), 0);
  const mode_t other = rights_of(place + "/b");
  write(place, "two");
  EXPECT_EQ(contents(place + "/a"), "two");
  EXPECT_EQ(rights_of(place), mode_t{0750});
  EXPECT_EQ(rights_of(place + "/a"), mode_t{0600});
  EXPECT_EQ(rights_of(place + "/b"), other);
}

TEST(DraftFolder, IsPrivateUntilItIsCommitted) {
  const std::string place = new_path();
  DraftFolder folder(place, {"a", "b"});
  ASSERT_EQ(drafts_of(place).size(), 1u);
  EXPECT_EQ(rights_of(drafts_of(place)[0]) & 0077, mode_t{0});
}

TEST(DraftFolder, ReplacesAReadOnlyOne) {
  const std::string place = new_path();
  write(place, "one");
  ASSERT_EQ(chmod(place.c_str(), 0555), 0);
  write(place, "two");
  EXPECT_EQ(contents(place + "/a"), "two");
  EXPECT_EQ(rights_of(place), mode_t{0555});
  EXPECT_THAT(drafts_of(place), IsEmpty());
  ASSERT_EQ(chmod(place.c_str(), 0755), 0);  // so that the test's folder can be removed later
}

TEST(DraftFolder, FollowsLinksAndDots) {
  const std::string place = new_path();
  make_folder(place);
  ASSERT_EQ(symlink(place.c_str(), (place + "-link").c_str()), 0);
  write(place + "-link", "one");
  EXPECT_EQ(contents(place + "/a"), "one");
  write(place + "/.", "two");
  EXPECT_EQ(contents(place + "/a"), "two");
  struct stat status {};
  EXPECT_EQ(lstat((place + "-link").c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  EXPECT_THAT(drafts_of(place), IsEmpty());
}

TEST(DraftFolder, SaysWhereItCannotBe) {
  const std::string place = new_path();
  EXPECT_THAT([&] { write(place + "/missing", "one"); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr(place + "': No such file or directory; make this folder first")));
  EXPECT_THAT([&] { write("", "one"); }, ThrowsMessage<c10::ValueError>(HasSubstr("empty")));
  EXPECT_THAT([&] { write("/proc", "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("mount point")));
  ASSERT_EQ(symlink("nowhere", (place + "-link").c_str()), 0);
  EXPECT_THAT([&] { write(place + "-link", "one"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("a link that leads nowhere")));

  const std::string folder = ::testing::TempDir() + "/";
  EXPECT_THAT([&] { write(folder + std::string(229, 'a'), "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("has 229 bytes, and may have 228")));
  EXPECT_NO_THROW(write(folder + std::string(228, 'a'), "one"));

  make_folder(place);
  const std::unique_ptr<char, void (*)(void*)> before(getcwd(nullptr, 0), std::free);
  ASSERT_EQ(chdir(place.c_str()), 0);
  EXPECT_THAT([&] { write(".", "one"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the current folder")));
  ASSERT_EQ(chdir(before.get()), 0);
}

}  // namespace
}  // namespace gpipe::internal
