// loop_pattern: orders in a loop of workers whose micro-batches go in groups. Internal to
// gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_LOOP_PATTERN_H_
#define GPIPE_SCHEDULE_SEARCH_LOOP_PATTERN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// The sizes of `count` groups of `micro_batches`, as even as possible, the larger first: a smaller
// group before a larger one may deadlock.
std::vector<int64_t> even_groups(int64_t micro_batches, int64_t count);

struct LoopPattern {
  int64_t workers = 1;
  int64_t v = 1;                // the stages of a worker; stage s is on worker s mod workers
  std::vector<int64_t> groups;  // the sizes of the groups
  // Whether backwards are split; worker r then runs its k-th weight gradient right after its
  // (k+r)-th input gradient.
  bool split = false;
};

// The worker's list: `warm_up` forwards, then a forward and a backward in turns, then the other
// backwards. Forwards go by group, stage and micro-batch, backwards likewise with the stages
// reversed.
WorkerOrder loop_order(const LoopPattern& pattern, int64_t worker, int64_t warm_up);

// Interleaved orders that keep the workload's limits, for a loop with several stages a worker: at
// most `count`, the shortest first. The function tries groups of each size, with as much warm-up as
// there is room for. Small groups hold little, but wait long. Orders that are not shorter than that
// of greedy workers (GreedyRule::of) are left out. `timing` belongs to the workload and counts the
// work. The function ends when `timing` has counted `most`, or when `stop` returns true.
std::vector<Order> grouped_orders(const Workload& workload, bool split, size_t count, int64_t most,
                                  const std::function<bool()>& stop, Timing* timing);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_LOOP_PATTERN_H_
