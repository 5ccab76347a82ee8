#include "gpipe/internal/threads/cpu_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace gpipe::internal {

int64_t workers_on_cpu(const Placement& placement, const std::vector<int32_t>& workers,
                       const std::vector<c10::Device>& devices) {
  int64_t count = 0;
  for (const int32_t worker : workers) {
    const std::vector<int64_t>& stages = placement.stages_of(worker);
    count += std::any_of(stages.begin(), stages.end(), [&](int64_t stage) {
      return devices.at(static_cast<size_t>(stage)).is_cpu();
    });
  }
  return count;
}

int64_t share_of_cpu_threads(int64_t wanted, int64_t cpu_workers) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, at::get_num_threads() / std::max<int64_t>(1, cpu_workers));
}

void set_threads_of_this_thread(int64_t threads) {
  // ATen sets a thread's default number lazily, at its first parallel operator, and would then
  // overwrite ours. Asking for the number makes ATen do so now.
  (void)at::get_num_threads();
  at::set_num_threads(static_cast<int>(threads));
}

DefaultThreadsScope::DefaultThreadsScope() { at::set_num_threads(at::get_num_threads()); }
DefaultThreadsScope::~DefaultThreadsScope() { at::set_num_threads(at::get_num_threads()); }

}  // namespace gpipe::internal
