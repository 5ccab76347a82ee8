// ProgramCache: schedules compiled for a pipeline's routes, kept from one call to the next.
#ifndef GPIPE_INTERNAL_PROGRAM_CACHE_H_
#define GPIPE_INTERNAL_PROGRAM_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Not thread-safe.
class ProgramCache {
 public:
  enum class Half : uint8_t { kForward, kBackward, kBoth };
  struct Compiled {
    Schedule schedule;
    Half half;
    Program program;
    // [stage][micro-batch] the whole schedule runs the cell's backward right after its forward.
    std::vector<std::vector<bool>> follows_at_once;
  };

  explicit ProgramCache(Routes routes) : routes_(std::move(routes)) {}

  // Compiles what is not there yet. Valid until the next call. Throws c10::ValueError, with what to
  // do, for a schedule of other stages or more workers than the pipeline has, for one that cannot
  // be run, and for one without forwards or without backwards.
  const Compiled& get(const Schedule& schedule, Half half);

  const Routes& routes() const { return routes_; }

 private:
  Routes routes_;
  std::vector<std::unique_ptr<Compiled>> programs_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROGRAM_CACHE_H_
