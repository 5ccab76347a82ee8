// split_time: where the time of a step went, for each worker and on average.
//
// A step lasts from the begin of its first action to the end of its last one, on whatever worker;
// what comes before and after (cutting the mini-batch, the optimizer) is not seen. That time of
// each worker is split without a rest, in whole nanoseconds:
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
//   - imbalance: all other waiting; and of waiting to fill and to drain the time in which the value
//     that it waits for, or one from which that is made, lay ready while its worker had other
//     actions to run first. Equal partitions under fill-drain or 1F1B have none of it.
// - transfer: from the end of the last action that it waited for to the begin of its next one: the
//   way of the value, and the worker's waking up. In a simulated run also when that action had
//   ended before the worker was free: nothing else takes time there.
// - overhead: the rest, that is between two actions of a worker although everything that the second
//   needs had been made.
//
// On accelerators the times are the host's (gpipe/runtime/observer.h): what it takes to give work
// to the devices, not what the devices take.
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

// "compute", "recompute", "fill", "drain", "imbalance", "transfer", "overhead".
const char* name_of(TimePart part);

// Nanoseconds.
using TimeParts = std::array<int64_t, kTimeParts>;  // by TimePart

struct TimeSplit {
  int64_t steps = 0;               // how many were split
  int64_t time = 0;                // how long they took together
  std::vector<TimeParts> workers;  // sums over the steps; those of a worker add up to `time`

  // The share of the time, 0 .. 1: of one worker, and the mean over the workers; 0 if there is no
  // time. Throws std::out_of_range for a worker that does not exist.
  double share(TimePart part, int64_t worker) const;
  double share(TimePart part) const;
  // The share of the time in which a worker is in actions, compute and recompute: the mean.
  double utilization() const;
};

// Splits the time of one step, or of several: sums. `routes`: those of the pipeline
// (GPipeImpl::routes), so that waiting for skips is known as such; by default only the chain of
// activations and gradients is. Steps that are not whole (StepTimeline::whole) are left out, failed
// ones for instance: what their workers would still have done is not known.
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
