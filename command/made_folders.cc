#include "command/made_folders.h"

#include <iostream>
#include <mutex>
#include <utility>
#include <vector>

#include "text/shown.h"

namespace gpipe::command {
namespace {

namespace fs = std::filesystem;

std::mutex mutex;

// For each call of make_folder() that has created folders: these folders, the outermost first.
// Guarded by `mutex`.
std::vector<std::vector<fs::path>>& made() {
  static std::vector<std::vector<fs::path>> folders;
  return folders;
}

std::vector<std::vector<fs::path>> take_made() {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(made(), {});
}

}  // namespace

void make_folder(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path each = folder; !each.empty() && !fs::exists(each, ignored);
       each = each.parent_path()) {
    missing.insert(missing.begin(), each);
  }
  // If another process makes the same folder at the same time, create_directories() returns true in
  // only one of the two, and only that process notes the folder.
  if (!fs::create_directories(folder, error)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  made().push_back(std::move(missing));
}

void tell_made_folders() {
  for (const std::vector<fs::path>& folders : take_made()) {
    if (folders.empty()) continue;
    std::cerr << "created the folder " << text::shown(folders.back().string()) << std::endl;
  }
}

void remove_made_folders() {
  const std::vector<std::vector<fs::path>> all = take_made();
  for (auto folders = all.rbegin(); folders != all.rend(); ++folders) {
    for (auto folder = folders->rbegin(); folder != folders->rend(); ++folder) {
      std::error_code error;  // ignored: a folder that is not empty stays
      fs::remove(*folder, error);
    }
  }
}

}  // namespace gpipe::command
