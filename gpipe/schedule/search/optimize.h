// optimize: finds the best order of a workload with a given amount of work. Internal to
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
  // Orders to begin with. Orders that break the limits or do not run are left out.
  std::vector<Order> seeds;
  // The amount of work, in simulated actions; other work counts by its time. Seeds are run in any
  // case, even if this is less.
  int64_t budget = 0;
  // `stop` is called every few milliseconds. If it returns true, the best order so far is the
  // result.
  std::function<bool()> stop;
  // Whether backwards may be split. If not, all are whole.
  bool split = true;
};

struct Optimized {
  Order order;
  double makespan = 0.0;
  // The index of the seed that is the result; -1 if it is not a seed.
  int32_t seed = -1;
  int64_t actions = 0;  // the work of the search, in simulated actions
  bool stopped = false;
  std::vector<Order> next_best;  // other orders that were found, the shortest first
};

// Throws std::invalid_argument for costs whose sum a double cannot hold: such times would compare
// as equal. optimize() does so, too.
void check_finite_total(const Workload& workload);

// Returns nullopt if there is no order within the limits: if a worker may not even hold one
// micro-batch in each of its stages. Deterministic, except for `stop`.
//
// Orders have three sources: the seeds, greedy workers, whose rules are varied (greedy.h), and
// changes of the best of both (anneal.h). If there are more micro-batches than needed to see a
// steady state, the search first runs with fewer, and the steady state is repeated.
std::optional<Optimized> optimize(const Workload& workload, const Optimizing& optimizing);

// The order made longer, for more micro-batches: each worker repeats a part from the middle of its
// list that has every kind of action of its stages once. Returns nullopt if a worker has no such
// part, or if the result would not run. `timing` belongs to `more`, and counts the work.
std::optional<Order> stretched(const Workload& fewer, const Order& order, const Workload& more,
                               Timing* timing);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_OPTIMIZE_H_
