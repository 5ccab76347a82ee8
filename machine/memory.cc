#include "machine/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace gpipe::machine {
namespace {

// The bytes of files that a control group counts as used, and that the kernel gives back if
// somebody needs memory.
int64_t cached_files(const std::string& path, const std::string& prefix) {
  std::ifstream file(path);
  int64_t sum = 0;
  std::string key;
  for (int64_t bytes = 0; file >> key >> bytes;) {
    if (key == prefix + "active_file" || key == prefix + "inactive_file") sum += bytes;
  }
  return sum;
}

// The number in a file that holds nothing else.
std::optional<int64_t> number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // the file holds another text, such as "max"
}

}  // namespace

int64_t available_memory() {
  std::optional<int64_t> least = bytes_of_line("/proc/meminfo", "MemAvailable:");
  // The limits that Linux's control groups set, in their second and in their first version.
  struct Group {
    std::string folder, most, used, prefix;
  };
  for (const Group& group : {Group{"/sys/fs/cgroup/", "memory.max", "memory.current", ""},
                             Group{"/sys/fs/cgroup/memory/", "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_"}}) {
    const std::optional<int64_t> limit = number(group.folder + group.most);
    const std::optional<int64_t> used = number(group.folder + group.used);
    if (!limit || !used) continue;
    const int64_t rest = std::max<int64_t>(
        *limit - *used + cached_files(group.folder + "memory.stat", group.prefix), 1);
    least = least ? std::min(*least, rest) : rest;
  }
  return least.value_or(0);
}

std::optional<int64_t> bytes_of_line(const std::string& file, const std::string& name) {
  std::ifstream lines(file);
  std::string key;
  int64_t kibibytes = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    if (words >> key >> kibibytes && key == name) return kibibytes * 1024;
  }
  return std::nullopt;
}

}  // namespace gpipe::machine
