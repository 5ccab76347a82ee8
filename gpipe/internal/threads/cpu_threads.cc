#include "gpipe/internal/threads/cpu_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "machine/cores.h"

namespace gpipe::internal {
namespace {

// LibTorch's default number of intra-op threads. If a program has set the same number, that cannot
// be told from the default.
const int kThreadsAtStart = at::get_num_threads();

}  // namespace

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

int64_t default_cpu_threads(int64_t now, int64_t at_start, bool is_chosen,
                            std::optional<double> quota) {
  return is_chosen || now != at_start ? now : machine::within_quota(now, quota);
}

int64_t default_cpu_threads() {
  const bool is_chosen =
      std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr;
  return default_cpu_threads(at::get_num_threads(), kThreadsAtStart, is_chosen,
                             machine::core_quota());
}

std::string fewer_threads_text() {
  const int64_t all = at::get_num_threads();
  const int64_t threads = default_cpu_threads();
  if (threads >= all) return "";
  return absl::StrCat(
      "this container may use the time of ", machine::core_quota().value_or(0),
      " cores (its CPU quota, cpu.max or cpu.cfs_quota_us), and LibTorch has ", all,
      " threads per operator: the stages on the CPU share ", threads,
      " (the last bits of results depend on this number). Set OMP_NUM_THREADS, or "
      "GPipeOptions::cpu_threads_per_stage, to have another number, which is then taken as it is");
}

int64_t share_of_cpu_threads(int64_t wanted, int64_t cpu_workers) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, default_cpu_threads() / std::max<int64_t>(1, cpu_workers));
}

void set_threads_of_this_thread(int64_t threads) {
  // ATen sets a thread's default number lazily, at its first parallel operator, and would then
  // overwrite the number that is set here. Asking for the number makes ATen do so now.
  (void)at::get_num_threads();
  at::set_num_threads(static_cast<int>(threads));
}

DefaultThreadsScope::DefaultThreadsScope() { at::set_num_threads(at::get_num_threads()); }
DefaultThreadsScope::~DefaultThreadsScope() { at::set_num_threads(at::get_num_threads()); }

}  // namespace gpipe::internal
