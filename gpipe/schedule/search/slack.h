// slack_of: by how much any one link may be slower before an order ends late; give_slack: an order
// with more of it. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_SLACK_H_
#define GPIPE_SCHEDULE_SEARCH_SLACK_H_

#include <cstdint>
#include <functional>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// The largest `extra` with which the order ends by the deadline if any one link is slower by
// `extra`. The search begins with a large `extra` and shrinks it: the critical path grows by
// `extra` each time that it crosses the slower link, so the number of crossings says by how much at
// least `extra` must shrink if the deadline is missed. Returns 0 if `stop` returns true.
double slack_of(Timing* timing, const Order& order, double deadline,
                const std::function<bool()>& stop);

struct MoreSlack {
  double deadline = 0.0;
  int64_t budget = 0;        // in simulated actions
  int64_t round_budget = 0;  // of one round of annealing
  bool joins = true;         // whether halves of backwards may be joined and split
  std::function<bool()> stop;
  std::function<bool()> ends;  // ends a computation of the slack
};

// Looks for an order with a little more slack until the budget is used. Returns whether one was
// found. `timing` belongs to `workload`, and counts the work.
bool give_slack(const Workload& workload, const MoreSlack& more, Timing* timing, Order* order);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_SLACK_H_
