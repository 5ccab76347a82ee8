#include "experiments/frame/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "machine/memory.h"

namespace gpipe::experiments {
namespace {

// The value of a line such as "VmData: 12345 kB", in bytes.
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

}  // namespace

int64_t limit_of_run(const std::vector<c10::Device>& devices) {
  const bool only_cpu = std::all_of(devices.begin(), devices.end(),
                                    [](c10::Device device) { return device.is_cpu(); });
  return only_cpu ? machine::available_memory() : 0;
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
