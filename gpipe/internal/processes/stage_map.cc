#include "gpipe/internal/processes/stage_map.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

std::vector<int64_t> processes_of(const Placement& placement, int64_t size) {
  const auto workers = static_cast<size_t>(placement.workers());
  std::vector<int64_t> processes = placement.process_of_worker();
  if (!processes.empty()) return processes;
  processes.assign(workers, 0);
  if (size > 1) std::iota(processes.begin(), processes.end(), 0);
  return processes;
}

}  // namespace

StageMap::StageMap(const Placement& placement, int64_t rank, int64_t size)
    : rank_(rank), process_of_worker_(processes_of(placement, size)) {
  std::vector<bool> used(static_cast<size_t>(size), false);
  for (size_t worker = 0; worker < process_of_worker_.size(); ++worker) {
    const int64_t process = process_of_worker_[worker];
    if (process >= size) {
      throw std::invalid_argument(
          "the placement has worker " + std::to_string(worker) + " in process " +
          std::to_string(process) + ", but there are " + std::to_string(size) +
          " processes (numbered from 0); start as many as the placement needs, or say with "
          "Placement::processes which workers share one");
    }
    used[static_cast<size_t>(process)] = true;
    if (process == rank_) workers_.push_back(static_cast<int32_t>(worker));
  }
  const auto idle = std::find(used.begin(), used.end(), false);
  if (idle != used.end()) {
    throw std::invalid_argument("process " + std::to_string(idle - used.begin()) + " of " +
                                std::to_string(size) + " has no worker: the placement has " +
                                std::to_string(process_of_worker_.size()) +
                                "; cut the model into more partitions, or start fewer processes");
  }
  for (const int64_t worker : placement.worker_of_stage()) {
    process_of_stage_.push_back(process_of_worker_[static_cast<size_t>(worker)]);
  }
}

}  // namespace gpipe::internal
