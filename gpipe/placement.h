// Placement: which worker runs each stage, and in which process each worker is.
//
// A placement knows neither devices nor LibTorch. A schedule must match it:
// Schedule::check(placement).
#ifndef GPIPE_PLACEMENT_H_
#define GPIPE_PLACEMENT_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

// The map stage -> worker -> process, as a value.
//
// Guarantees: stages, workers and processes are counted from 0, and every worker has a stage.
//
// Thread-safety: safe to read from any thread.
//
// Throws: std::invalid_argument for counts below 1, more than 2^24 stages, numbers below 0 and
// numbers left out; std::out_of_range for a stage or worker that does not exist.
//
// Example:
//   Placement placement = Placement::v_shape(4);      // eight stages: 0 1 2 3 3 2 1 0
//   placement.worker_of(7);                           // 0
//   placement.processes({0, 0, 1, 1});                // two workers in each of two processes
class Placement {
 public:
  // Stage s on worker s.
  static Placement one_each(int64_t stages);
  // workers x v stages: stage s on worker s mod workers (Narayanan et al., "Efficient Large-Scale
  // Language Model Training on GPU Clusters Using Megatron-LM", 2021).
  static Placement loop(int64_t workers, int64_t v);
  // 2 x workers stages: up to the last worker and back, so that worker 0 has the first and the last
  // stage (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
  static Placement v_shape(int64_t workers);
  // Any other placement: [stage] the stage's worker.
  static Placement of(std::vector<int64_t> worker_of_stage);

  // Sets the process of each worker. Without this call all workers are in one process or, where
  // there are several processes, each in its own.
  Placement& processes(std::vector<int64_t> process_of_worker);

  int64_t stages() const { return static_cast<int64_t>(worker_of_stage_.size()); }
  int64_t workers() const { return static_cast<int64_t>(stages_of_worker_.size()); }
  int64_t worker_of(int64_t stage) const;
  // The worker's stages, ascending.
  const std::vector<int64_t>& stages_of(int64_t worker) const;
  const std::vector<int64_t>& worker_of_stage() const { return worker_of_stage_; }
  // The list that processes() was given; empty without it.
  const std::vector<int64_t>& process_of_worker() const { return process_of_worker_; }

  // A text for people and files, and its exact inverse:
  //   worker_of_stage 0 1 1 0
  //   process_of_worker 0 1          if processes() was called
  // from_text() also takes empty lines and comments that start with '#'. Throws
  // std::invalid_argument that says what was expected.
  std::string to_text() const;
  static Placement from_text(std::string_view text);

  friend bool operator==(const Placement& a, const Placement& b) {
    return a.worker_of_stage_ == b.worker_of_stage_ && a.process_of_worker_ == b.process_of_worker_;
  }
  friend bool operator!=(const Placement& a, const Placement& b) { return !(a == b); }
  // Writes to_text().
  friend std::ostream& operator<<(std::ostream& out, const Placement& placement);

 private:
  Placement() = default;

  std::vector<int64_t> worker_of_stage_;
  std::vector<std::vector<int64_t>> stages_of_worker_;
  std::vector<int64_t> process_of_worker_;
};

}  // namespace gpipe

#endif  // GPIPE_PLACEMENT_H_
