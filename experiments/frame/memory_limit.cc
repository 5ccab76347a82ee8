#include "experiments/frame/memory_limit.h"

#include <algorithm>
#include <optional>

#include "machine/memory.h"

namespace gpipe::experiments {

int64_t limit_of_run(const std::vector<c10::Device>& devices) {
  const bool only_cpu = std::all_of(devices.begin(), devices.end(),
                                    [](c10::Device device) { return device.is_cpu(); });
  return only_cpu ? machine::available_memory() : 0;
}

MemoryLimit::MemoryLimit(int64_t bytes) {
  const std::optional<int64_t> now = machine::bytes_of_line("/proc/self/status", "VmData:");
  if (bytes <= 0 || !now || getrlimit(RLIMIT_DATA, &before_) != 0) return;
  rlimit limit = before_;
  limit.rlim_cur = std::min(before_.rlim_cur, static_cast<rlim_t>(*now + bytes));
  set_ = setrlimit(RLIMIT_DATA, &limit) == 0;
}

MemoryLimit::~MemoryLimit() {
  if (set_) setrlimit(RLIMIT_DATA, &before_);
}

}  // namespace gpipe::experiments
