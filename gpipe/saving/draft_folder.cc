#include "gpipe/saving/draft_folder.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace gpipe::internal {
namespace {

[[noreturn]] void fail(const std::string& path) {
  throw std::runtime_error("'" + path + "': " + std::strerror(errno));
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The names in a folder.
std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(folder.c_str()), closedir);
  if (!opened) fail(folder);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(opened.get())) {  // NOLINT(concurrency-mt-unsafe): ours only
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

bool exists(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) fail(path);
  return false;
}

// What a folder lists is on the disk only after that.
void sync_folder(const std::string& folder) {
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) fail(folder);
  // Some file systems cannot, and say EINVAL.
  const bool failed = fsync(opened) != 0 && errno != EINVAL;
  const int error = errno;
  close(opened);
  errno = error;
  if (failed) fail(folder);
}

}  // namespace

DraftFolder::DraftFolder(std::string place, std::vector<std::string> files)
    : place_(without_slashes(std::move(place))), files_(std::move(files)) {
  TORCH_CHECK_VALUE(!place_.empty(), "the path of the folder is empty");
  if (exists(place_)) {
    struct stat status {};
    TORCH_CHECK_VALUE(lstat(place_.c_str(), &status) == 0 && S_ISDIR(status.st_mode), "'", place_,
                      "' is there and is no folder; give another path");
    for (const std::string& name : names_in(place_)) {
      TORCH_CHECK_VALUE(std::count(files_.begin(), files_.end(), name) != 0, "'", place_,
                        "' is a folder with '", name,
                        "', which no checkpoint has; give the path of another folder");
    }
  }
  draft_ = place_ + ".draft-" + std::to_string(getpid());
  // Of a process that had our number, and did not end well.
  if (exists(draft_)) remove(draft_);
  if (mkdir(draft_.c_str(), 0777) != 0) fail(draft_);
}

DraftFolder::~DraftFolder() {
  if (draft_.empty()) return;
  try {
    remove(draft_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // It stays, and nobody reads it.
  }
}

std::string DraftFolder::file(const std::string& name) const { return draft_ + "/" + name; }

void DraftFolder::commit() {
  sync_folder(draft_);
  if (!exists(place_)) {
    if (std::rename(draft_.c_str(), place_.c_str()) != 0) fail(place_);
    draft_.clear();
  } else {
    // Both change places at once; a rename() would want the old folder to be empty.
    if (renameat2(AT_FDCWD, draft_.c_str(), AT_FDCWD, place_.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno == EINVAL || errno == ENOSYS) {
        throw std::runtime_error("'" + place_ +
                                 "': this file system cannot replace a folder at once; give the "
                                 "path of a new one");
      }
      fail(place_);
    }
  }
  sync_folder(parent_of(place_));
  if (draft_.empty()) return;
  // The old one. That it cannot be removed is no failure of the new one.
  try {
    remove(draft_);
  } catch (const std::exception& error) {
    TORCH_WARN("the old checkpoint is left at ", error.what());
  }
  draft_.clear();
}

// std::filesystem::remove_all crashes in a program that has LibTorch.
void DraftFolder::remove(const std::string& folder) const {
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    if (unlink(path.c_str()) != 0) fail(path);
  }
  if (rmdir(folder.c_str()) != 0) fail(folder);
}

}  // namespace gpipe::internal
