// search: looks for the best schedule for given costs, transfers and memory.
//
// docs/design/schedule.md says how it works, and docs/guide/20-which-schedule.md when it pays.
#ifndef GPIPE_SCHEDULE_SEARCH_SEARCH_H_
#define GPIPE_SCHEDULE_SEARCH_SEARCH_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {

enum class Objective : uint8_t {
  kMakespan,
  // Slack for slow links: among the schedules that end within SearchOptions::tolerance of the
  // shortest makespan found, the search looks for one that still does so when transfers over any
  // one link take as much longer as possible.
  kSlack,
};

// A value that goes straight from a stage to a later one, such as a U-Net's, and its gradient back.
struct SearchSkip {
  int64_t from_stage = 0;
  int64_t to_stage = 1;
  // The times of the transfers, which count if the stages are on two workers.
  double activation_transfer = 0.0;
  double gradient_transfer = 0.0;
};

// A list with a value for each stage, boundary or worker may also have a single value for all of
// them. All times are in one unit, and so are all amounts of memory (bytes, or micro-batches).
struct SearchOptions {
  Placement placement = Placement::one_each(1);
  int64_t micro_batches = 1;
  // Costs per stage. A whole backward has a cost of its own: usually less than its halves together.
  std::vector<StageCost> costs = {{1.0, 2.0, 1.0, 1.0}};
  // The times of the transfer of an activation from stage s to s + 1, and of a gradient back, if
  // the two stages are on two workers. One time for each of the stages - 1 boundaries, or one for
  // all. Empty: transfers take no time.
  std::vector<double> activation_transfer;
  std::vector<double> gradient_transfer;
  // Skip connections; each has a link of its own beside the activations. The memory of a skip's
  // value is part of the activation_bytes of the stage that receives it.
  std::vector<SearchSkip> skips;
  // Per stage: the memory that a micro-batch holds from its forward to its backward or input
  // gradient (activation_bytes), and from its input gradient to its weight gradient
  // (waiting_bytes).
  std::vector<double> activation_bytes = {1.0};
  std::vector<double> waiting_bytes = {1.0};
  // The most memory of each worker. Empty: no limit.
  std::vector<double> memory_limit;
  // Whether backwards may be split.
  bool split = true;
  Objective objective = Objective::kMakespan;
  // The part by which the makespan may be longer than the shortest one, for Objective::kSlack and
  // SearchResult::slack.
  double tolerance = 0.05;
  // How much the search tries, in simulated actions (about 10 ns each). It is not a time, so that
  // the result is the same each time. All work of a search counts, also the work of the generators
  // of the placement's shape. It must be at least the actions of one schedule, 3 x stages x
  // micro_batches; search() refuses less. At most a fifth more is used, not counting what is always
  // tried: generators that follow rules, and the first orders of the others. Default, 0: enough for
  // all generators, and some seconds.
  int64_t budget = 0;
  // Called every few milliseconds; if it returns true, the search ends with the best schedule so
  // far, whose splits are not joined and whose slack is not computed.
  std::function<bool()> stop;
};

struct SearchResult {
  Schedule schedule;   // ascending (ScheduleFacts)
  std::string origin;  // the generator that made it, or "search"
  // The makespan of simulate(schedule, search_routes(options), simulate_options(options)).
  double makespan = 0.0;
  double lower_bound = 0.0;  // no schedule of this placement within the limits is shorter
  double slack = 0.0;  // link_slack() for the tolerance; 0 if the search was stopped or had no
                       // budget left
  std::vector<double> peak_bytes;  // per worker
  int64_t actions = 0;             // the work of the search, as the budget counts it
  bool stopped = false;

  // The part by which the makespan may be longer than that of the best possible schedule. With 0.02
  // it is at most 2 % longer. Never negative, although makespan and bound are sums that may round
  // differently.
  double gap() const {
    return lower_bound > 0.0 ? std::max(makespan / lower_bound - 1.0, 0.0) : 0.0;
  }
};

// With the default budget the result is never worse than any generator of the placement's shape
// that keeps the limits (generators.h), and never worse than a search without splits, whose work it
// does first where a whole backward costs less than its halves. With a smaller one it is never
// worse than the generators that follow rules.
//
// Deterministic, except for `stop`. Throws std::invalid_argument for options that make no sense,
// and for limits that no schedule keeps; the message says what each worker needs: one micro-batch
// in each of its stages.
//
// Example:
//   SearchOptions options;
//   options.placement = Placement::v_shape(8);
//   options.micro_batches = 32;
//   options.costs = {{1.0, 1.7, 1.1, 0.7}};
//   options.memory_limit = {12.0};        // stage x micro-batch pairs, as bytes are not given
//   search(options).schedule;
SearchResult search(const SearchOptions& options);

// The costs and the skips in the form that simulate() takes. Without skips simulate() needs no
// routes. The costs throw std::out_of_range for a stage that the options do not have.
SimulateOptions simulate_options(const SearchOptions& options);
Routes search_routes(const SearchOptions& options);
// The most memory that each worker holds. Like link_slack(), it throws std::invalid_argument unless
// the schedule has the placement and the micro-batches of the options, has forwards and backwards,
// and verifies with buffered sends.
std::vector<double> peak_bytes(const Schedule& schedule, const SearchOptions& options);
// How much longer each transfer between any one pair of workers may take, in both directions, for
// the makespan to be at most `deadline`. Infinite if there are no transfers, or if the deadline is
// infinite. 0 if the makespan is longer in any case, or if SearchOptions::stop returns true. Also
// throws std::invalid_argument for a deadline that is not a number, and for a schedule that is not
// ascending.
double link_slack(const Schedule& schedule, const SearchOptions& options, double deadline);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCH_H_
