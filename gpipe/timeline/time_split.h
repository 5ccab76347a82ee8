// split_time: where the time of a step went, for each worker and on average.
//
// A step lasts from the begin of its first action to the end of its last one, on whatever worker.
// The work before and after (cutting the mini-batch, the optimizer) is not seen. Each worker's part
// of that time is split completely, in whole nanoseconds:
//
// - compute: in actions, except for
// - recompute: making the graphs of checkpointed cells again.
// - Between actions a worker *waits* for as long as an action that its next one needs is running or
//   still to come on another worker. With nothing to run any more it waits for the step to end.
//   - fill: before its first forward and before its first backward (B or I), until activations,
//     and gradients, have come to it for the first time.
//   - drain: after its last action. If some worker runs a forward after one of its backwards, as in
//     1F1B, also all waiting after the worker's own last forward, its first backward excepted:
//     gradients then arrive less often than the worker could take them.
//   - imbalance: all other waiting. Also the part of fill and drain in which the action that the
//     worker waits for, or an earlier one on which that depends, could have run, but its own worker
//     had other actions to run first. Equal partitions under fill-drain or 1F1B have no imbalance.
// - transfer: from the end of the last action that it waited for to the begin of its next one: the
//   way of the value, and the worker's waking up. In a simulated run also when that action had
//   ended before the worker was free: nothing else takes time there.
// - overhead: the rest: time between two actions of a worker although everything that the second
//   needs had been made.
//
// On accelerators the times are the host's (gpipe/runtime/observer.h): the time to give work to the
// devices, not the time that the devices take.
#ifndef GPIPE_TIMELINE_TIME_SPLIT_H_
#define GPIPE_TIMELINE_TIME_SPLIT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

enum class TimePart : uint8_t {
  kCompute,
  kRecompute,
  kFill,
  kDrain,
  kImbalance,
  kTransfer,
  kOverhead,
};

inline constexpr int kTimeParts = 7;

// The name of the part: "compute", "recompute", "fill", "drain", "imbalance", "transfer" or
// "overhead".
const char* name_of(TimePart part);

// The time of each part in nanoseconds.
using TimeParts = std::array<int64_t, kTimeParts>;  // [TimePart]

struct TimeSplit {
  int64_t steps = 0;               // how many steps were split
  int64_t time = 0;                // how long the steps took together
  std::vector<TimeParts> workers;  // [worker] sums over the steps; its parts add up to `time`

  // The share of a part in the time, 0 .. 1: for one worker, or the mean over all workers. 0 if
  // there is no time. Throws std::out_of_range for a worker that does not exist.
  double share(TimePart part, int64_t worker) const;
  double share(TimePart part) const;
  // The mean share of the time in which a worker is in actions (compute and recompute).
  double utilization() const;
};

// Splits the time of one step, or the summed time of several steps. `routes`: those of the pipeline
// (GPipeImpl::routes), so that waiting for skips is recognized. By default only waiting for
// activations and gradients of neighboring stages is recognized. Steps that are not whole
// (StepTimeline::whole), failed ones for instance, are left out: nobody knows what their workers
// would still have done.
//
// Throws std::invalid_argument for steps of different numbers of workers, and for routes that do
// not reach all stages.
//
// Example:
//   TimeSplit split = split_time(timeline.steps());
//   split.share(TimePart::kImbalance);
TimeSplit split_time(const std::vector<StepTimeline>& steps,
                     const std::optional<Routes>& routes = std::nullopt);
TimeSplit split_time(const StepTimeline& step, const std::optional<Routes>& routes = std::nullopt);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_TIME_SPLIT_H_
