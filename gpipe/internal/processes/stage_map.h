// StageMap: in which process each stage of a placement is, and which stages are in this one.
#ifndef GPIPE_INTERNAL_PROCESSES_STAGE_MAP_H_
#define GPIPE_INTERNAL_PROCESSES_STAGE_MAP_H_

#include <cstdint>
#include <vector>

#include "gpipe/placement.h"

namespace gpipe::internal {

// A value.
class StageMap {
 public:
  // The map in a world of one process, which has all stages.
  explicit StageMap(const Placement& placement) : StageMap(placement, 0, 1) {}
  // The map in process `rank` of `size`. Throws std::invalid_argument that says what to do if the
  // placement's processes are not exactly these. Without Placement::processes each process has one
  // worker.
  StageMap(const Placement& placement, int64_t rank, int64_t size);

  bool has_stage(int64_t stage) const { return process_of_stage(stage) == rank_; }
  int64_t process_of_stage(int64_t stage) const {
    return process_of_stage_.at(static_cast<size_t>(stage));
  }
  const std::vector<int64_t>& process_of_worker() const { return process_of_worker_; }
  // The workers of this process, ascending.
  const std::vector<int32_t>& workers() const { return workers_; }

 private:
  int64_t rank_;
  std::vector<int64_t> process_of_stage_;
  std::vector<int64_t> process_of_worker_;
  std::vector<int32_t> workers_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_STAGE_MAP_H_
