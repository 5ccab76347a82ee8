#include "gpipe/internal/call/placement_warning.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include "gpipe/runtime/warning_log.h"

namespace gpipe::internal {

void warn_without_placement(const Schedule& schedule, int64_t stages, bool on_cpu) {
  static std::atomic<bool> told{false};
  const int64_t workers = schedule.workers();
  if (schedule.stages() != stages || workers >= stages || (workers > 1 && !on_cpu)) return;
  std::string list;
  try {
    for (int64_t stage = 0; stage < stages; ++stage) {
      list += (stage == 0 ? "" : ", ") + std::to_string(schedule.worker_of(stage));
    }
  } catch (const std::invalid_argument&) {
    return;  // a stage that no worker runs, which is refused later
  }
  if (told.exchange(true)) return;
  log_warning("the schedule runs " + std::to_string(stages) + " stages on " +
              (workers == 1
                   ? "one worker, so nothing runs at the same time: one with several stages on "
                     "each worker (zb-v, interleaved, ...) needs that many partitions for each"
                   : std::to_string(workers) + " workers, each with the threads of one stage") +
              ". If that is intended, give GPipeOptions::placement(Placement::of({" + list +
              "})), so that the workers share all threads");
}

}  // namespace gpipe::internal
