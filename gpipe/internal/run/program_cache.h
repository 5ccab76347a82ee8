// ProgramCache: schedules compiled for a pipeline's routes, kept between calls.
#ifndef GPIPE_INTERNAL_RUN_PROGRAM_CACHE_H_
#define GPIPE_INTERNAL_RUN_PROGRAM_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Thread-safety: none.
class ProgramCache {
 public:
  enum class Half : uint8_t { kForward, kBackward, kBoth };
  struct Compiled {
    Schedule schedule;
    Half half;
    Program program;
    // [stage][micro-batch] whether the whole schedule runs the cell's backward right after its
    // forward.
    std::vector<std::vector<bool>> follows_at_once;
    // [stage] whether the stage's forwards take the micro-batches in their order.
    std::vector<bool> forwards_ascend;
    // Whether all stages add to the leaves' gradients in the order of the micro-batches.
    bool sums_ascend;
    // Data that a run over several processes keeps for the next run.
    std::shared_ptr<Processes::Messages> messages;
  };

  explicit ProgramCache(Routes routes) : routes_(std::move(routes)) {}

  // Compiles the program if it is not in the cache. The reference is valid until the next call.
  //
  // Throws c10::ValueError that says what to do: for a schedule with other stages or more workers
  // than the pipeline has, for a schedule that cannot be run, and for a schedule without forwards
  // or without backwards.
  Compiled& get(const Schedule& schedule, Half half);

  const Routes& routes() const { return routes_; }

 private:
  Routes routes_;
  std::vector<std::unique_ptr<Compiled>> programs_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_PROGRAM_CACHE_H_
