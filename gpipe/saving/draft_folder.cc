#include "gpipe/saving/draft_folder.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr const char* kDraft = ".draft-";

[[noreturn]] void fail(const std::string& path, const char* advice = "") {
  throw std::runtime_error(text::in_quotes(path) + ": " + std::strerror(errno) + advice);
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The names of the files in a folder.
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

// The path without slashes at the end. If it exists, the path also has no links and no dots,
// because the draft must be beside the folder itself and not beside a link to it.
std::string resolved(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty() || !exists(path)) return path;
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  if (!real) fail(path, "; is it a link that leads nowhere?");
  return real.get();
}

// Brings the folder's list of names to the disk. Syncing the files in the folder does not do that.
void sync_folder(const std::string& folder) {
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) fail(folder);
  // EINVAL is not a failure: file systems that cannot sync folders report it.
  const bool failed = fsync(opened) != 0 && errno != EINVAL;
  const int error = errno;
  close(opened);
  errno = error;
  if (failed) fail(folder);
}

// Opens a folder and locks it. If that is not possible, returns -1, with a reason in errno:
// EWOULDBLOCK if another process has the lock, ENOENT if the folder is not at `path` any more.
int lock_folder(const std::string& path) {
  const int opened = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) return -1;
  struct stat locked {
  }, there{};
  if (flock(opened, LOCK_EX | LOCK_NB) == 0 && fstat(opened, &locked) == 0 &&
      lstat(path.c_str(), &there) == 0) {
    if (locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) return opened;
    errno = ENOENT;
  }
  const int error = errno;
  close(opened);
  errno = error;
  return -1;
}

// Removes the files `names` of a folder and then the folder. The names were listed a moment ago,
// and all are files of such a folder. Files that have come since stay. std::filesystem::remove_all
// would crash in a program that has LibTorch 2.11.
void remove(const std::string& folder, const std::vector<std::string>& names) {
  // The folder is made writable first, because it may be a read-only folder that was replaced.
  if (chmod(folder.c_str(), 0700) != 0 && errno == ENOENT) return;
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    if (unlink(path.c_str()) != 0 && errno != ENOENT) fail(path);
  }
  if (rmdir(folder.c_str()) != 0 && errno != ENOENT) fail(folder);
}

// Gives a new file or folder the owner and rights of the old one that it replaces.
void give_access(const std::string& path, const struct stat& old) {
  // The owner comes first, because changing it takes rights away. Only root may give files to
  // another user. Other users may give them to a group that they belong to. If the group cannot be
  // kept, its rights are dropped, too.
  mode_t rights = old.st_mode & 07777;
  if (chown(path.c_str(), old.st_uid, old.st_gid) != 0 &&
      chown(path.c_str(), static_cast<uid_t>(-1), old.st_gid) != 0) {
    rights &= 07707;
  }
  // Some file systems have no rights (chmod fails), which is not a failure.
  if (chmod(path.c_str(), rights) != 0) errno = 0;
}

// Whether two folders have changed places in one call.
bool change_places(const std::string& one, const std::string& other) {
  return renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
}

// Whether the file system has no such call, by what is in errno after it.
bool cannot_exchange(int error) { return error == EINVAL || error == ENOSYS; }

// Whether there is a folder at `place`, a resolved path. Throws if a checkpoint cannot be there.
bool has_folder(const std::string& place,
                const std::function<bool(const std::string& name)>& is_known) {
  TORCH_CHECK_VALUE(!place.empty(), "the path of the folder is empty");
  const size_t name = place.size() - (place.rfind('/') + 1);  // npos + 1 is 0
  constexpr size_t kLongest = NAME_MAX - 27;                  // ".draft-" and a number
  TORCH_CHECK_VALUE(name <= kLongest, text::in_quotes(place), ": the folder's name has ", name,
                    " bytes, and may have ", kLongest,
                    ", because a draft with a longer name is written first");
  struct stat status {
  }, entry{}, parent{}, current{};
  if (lstat(place.c_str(), &status) != 0) {
    if (errno != ENOENT) fail(place);
    if (!exists(parent_of(place))) fail(parent_of(place), "; make this folder first");
    return false;
  }
  TORCH_CHECK_VALUE(S_ISDIR(status.st_mode), text::in_quotes(place),
                    " exists and is not a folder; give another path");
  if (stat(parent_of(place).c_str(), &parent) != 0) fail(parent_of(place));
  TORCH_CHECK_VALUE(status.st_dev == parent.st_dev, text::in_quotes(place),
                    " is a mount point, which cannot be replaced; give the path of a folder in "
                    "it");
  const bool is_current = stat(".", &current) == 0 && status.st_dev == current.st_dev &&
                          status.st_ino == current.st_ino;
  TORCH_CHECK_VALUE(!is_current, text::in_quotes(place),
                    " is the current folder, which cannot be replaced; give the path of a folder "
                    "in it");
  for (const std::string& name : names_in(place)) {
    const bool file = lstat((place + "/" + name).c_str(), &entry) != 0 || !S_ISDIR(entry.st_mode);
    TORCH_CHECK_VALUE(file && is_known(name), text::in_quotes(place), " is a folder with ",
                      text::in_quotes(name),
                      ", which no checkpoint has; give the path of another folder");
  }
  return true;
}

}  // namespace

bool check_place(const std::string& place,
                 const std::function<bool(const std::string& name)>& is_known) {
  return has_folder(resolved(place), is_known);
}

void check_exchange(const std::string& place,
                    const std::function<bool(const std::string& name)>& is_known) {
  std::optional<DraftFolder> one, other;
  try {
    one.emplace(place, std::vector<std::string>(), is_known);
    other.emplace(place, std::vector<std::string>(), is_known);
  } catch (const std::runtime_error&) {
    return;  // a process that never saves needs no place to write; the others' saves report it
  }
  if (!change_places(one->path(), other->path()) && cannot_exchange(errno)) {
    fail(place,
         "; its file system cannot replace a checkpoint by the next one at once: give a path on "
         "one that can exchange folders (ext4, XFS, Btrfs and tmpfs can, NFS cannot)");
  }
}

DraftFolder::DraftFolder(const std::string& place, std::vector<std::string> files,
                         std::function<bool(const std::string& name)> is_old)
    : place_(resolved(place)), files_(std::move(files)), is_old_(std::move(is_old)) {
  has_old_one();  // called for its checks of the place
  remove_left_ones();
  make();
}

DraftFolder::~DraftFolder() {
  if (!draft_.empty()) {
    try {
      remove(draft_, names_in(draft_));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // If the draft cannot be removed, it stays on the disk, where no reader looks at it.
    }
  }
  if (descriptor_ >= 0) close(descriptor_);
}

std::string DraftFolder::file(const std::string& name) const { return draft_ + "/" + name; }

// Whether the name is that of a known file, or of a temporary file that its writer makes
// ("model.safetensors.part1.2").
bool DraftFolder::is_file(const std::string& name) const {
  const auto is_or_becomes = [&](const std::string& file) {
    return name == file || absl::StartsWith(name, file + ".part");
  };
  return is_known(name) || std::any_of(files_.begin(), files_.end(), is_or_becomes) ||
         is_known(name.substr(0, name.rfind(".part")));
}

bool DraftFolder::is_known(const std::string& name) const {
  return std::count(files_.begin(), files_.end(), name) != 0 ||
         (is_old_ != nullptr && is_old_(name));
}

bool DraftFolder::has_old_one() const {
  return has_folder(place_, [this](const std::string& name) { return is_known(name); });
}

void DraftFolder::make() {
  // The draft's name has a random number, so that no name is used twice. Otherwise a process that
  // removes an old draft could meet another folder under its name. Process numbers would repeat on
  // several machines.
  std::random_device random;
  do {
    draft_ = place_ + kDraft + std::to_string(uint64_t{random()} << 32 | random());
    if (mkdir(draft_.c_str(), 0777) != 0) {
      fail(draft_);
    }
    descriptor_ = lock_folder(draft_);
    // If another process has just taken this draft for one that a crash has left, a new draft is
    // made. If the file system has no locks, the draft stays unlocked.
  } while (descriptor_ < 0 && (errno == ENOENT || errno == EWOULDBLOCK));
  struct stat status {};
  if (stat(draft_.c_str(), &status) != 0) fail(draft_);
  rights_ = status.st_mode & 07777;
  // Some file systems have no rights (chmod fails), which is not a failure.
  if (chmod(draft_.c_str(), (rights_ & 07700) | 0700) != 0) errno = 0;
}

void DraftFolder::remove_left_ones() const {
  const std::string parent = parent_of(place_);
  const std::string start = place_.substr(place_.rfind('/') + 1) + kDraft;
  for (const std::string& name : names_in(parent)) {
    if (!absl::StartsWith(name, start)) continue;
    if (name.find_first_not_of("0123456789", start.size()) != std::string::npos) continue;
    const std::string path = parent + "/" + name;
    const int locked = lock_folder(path);
    if (locked < 0) continue;
    try {
      const std::vector<std::string> names = names_in(path);
      const bool ours = std::all_of(names.begin(), names.end(),
                                    [this](const std::string& file) { return is_file(file); });
      if (ours) remove(path, names);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // If the draft cannot be removed, it stays on the disk, where no reader looks at it.
    }
    close(locked);
  }
}

void DraftFolder::keep_access() const {
  struct stat old {};
  for (const std::string& name : files_) {
    if (stat((place_ + "/" + name).c_str(), &old) == 0) give_access(file(name), old);
  }
  if (stat(place_.c_str(), &old) == 0) {
    give_access(draft_, old);
  } else if (chmod(draft_.c_str(), rights_) != 0) {
    errno = 0;
  }
}

void DraftFolder::commit() {
  keep_access();
  sync_folder(draft_);
  std::string old;
  while (!draft_.empty()) {
    if (!has_old_one()) {
      if (std::rename(draft_.c_str(), place_.c_str()) == 0) {
        draft_.clear();
      } else if (errno != ENOTEMPTY && errno != EEXIST) {  // otherwise another writer was faster
        fail(place_);
      }
      continue;
    }
    // The two folders change places in one call. rename() cannot be used, because it would require
    // that the old folder is empty.
    if (change_places(draft_, place_)) {
      old = std::exchange(draft_, "");
      continue;
    }
    if (errno == ENOENT && !exists(place_)) continue;  // another process has removed the old one
    fail(place_, cannot_exchange(errno)
                     ? "; this file system cannot replace a folder at once; give the path of a "
                       "new one"
                     : "");
  }
  sync_folder(parent_of(place_));
  if (old.empty()) return;
  // A failure to remove the old folder is not a failure of the new one.
  try {
    std::vector<std::string> names;
    for (std::string& name : names_in(old)) {
      if (is_known(name)) names.push_back(std::move(name));
    }
    remove(old, names);
  } catch (const std::exception& error) {
    // If another writer has removed the old folder, there is nothing to warn of.
    if (exists(old)) {
      TORCH_WARN("the old checkpoint is left at ", error.what());
    }
  }
}

}  // namespace gpipe::internal
