// optimize: the best order of a workload that can be found with a given amount of work. Internal to
// gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_OPTIMIZE_H_
#define GPIPE_SCHEDULE_SEARCH_OPTIMIZE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

struct Optimizing {
  // Orders to begin with; those that break the limits or do not run are left out.
  std::vector<Order> seeds;
  // Simulated actions, for all that is done: with what else it takes in their time. Seeds are run
  // in any case.
  int64_t budget = 0;
  // Asked every few milliseconds: ends it, with the best so far.
  std::function<bool()> stop;
  // Whether backwards are split. If not, all are whole.
  bool split = true;
};

struct Optimized {
  Order order;
  double makespan = 0.0;
  // The seed that it is; -1 if it is none of them.
  int32_t seed = -1;
  int64_t actions = 0;  // how much work it was
  bool stopped = false;
  std::vector<Order> next_best;  // some others that were found, the shortest first
};

// Nothing if there is no order within the limits: if a worker may not even hold one micro-batch in
// each of its stages. Deterministic, but for `stop`.
//
// It goes on from the best of three sources: the seeds; orders of greedy workers, whose rules are
// varied (greedy.h); and changes of those (anneal.h). Where there are more micro-batches than
// needed to see a steady state, this is done for fewer, and the steady state is repeated.
std::optional<Optimized> optimize(const Workload& workload, const Optimizing& optimizing);

// The order for more micro-batches: each worker repeats a part of its list that has every kind of
// action of its stages once, from its middle. Nothing if a worker has no such part, or if the
// result would not run. `timing` is that of `more`: what it takes counts there.
std::optional<Order> stretched(const Workload& fewer, const Order& order, const Workload& more,
                               Timing* timing);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_OPTIMIZE_H_
