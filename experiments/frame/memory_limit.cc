#include "experiments/frame/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace gpipe::experiments {
namespace {

// The value of a line such as "MemAvailable: 12345 kB", in bytes.
std::optional<int64_t> field(const char* path, const char* name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    int64_t kibibytes = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kibibytes)) return kibibytes * 1024;
  }
  return std::nullopt;
}

// The number in a file that holds nothing else.
std::optional<int64_t> number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // such as "max"
}

}  // namespace

int64_t available_memory() {
  std::optional<int64_t> least = field("/proc/meminfo", "MemAvailable:");
  // The second and the first version of Linux's control groups.
  for (const auto& [most, used] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const std::optional<int64_t> limit = number(most);
    const std::optional<int64_t> now = number(used);
    if (!limit || !now) continue;
    const int64_t rest = std::max<int64_t>(*limit - *now, 1);
    least = least ? std::min(*least, rest) : rest;
  }
  return least.value_or(0);
}

int64_t limit_of_run(const std::vector<c10::Device>& devices) {
  const bool only_cpu = std::all_of(devices.begin(), devices.end(),
                                    [](c10::Device device) { return device.is_cpu(); });
  return only_cpu ? available_memory() : 0;
}

MemoryLimit::MemoryLimit(int64_t bytes) {
  const std::optional<int64_t> now = field("/proc/self/status", "VmData:");
  if (bytes <= 0 || !now || getrlimit(RLIMIT_DATA, &before_) != 0) return;
  rlimit limit = before_;
  limit.rlim_cur = std::min(before_.rlim_cur, static_cast<rlim_t>(*now + bytes));
  set_ = setrlimit(RLIMIT_DATA, &limit) == 0;
}

MemoryLimit::~MemoryLimit() {
  if (set_) setrlimit(RLIMIT_DATA, &before_);
}

}  // namespace gpipe::experiments
