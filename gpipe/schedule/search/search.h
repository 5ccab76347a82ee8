// search: the best schedule that can be found for given costs, transfers and memory.
//
// docs/design/schedule.md says how; docs/guide/20-which-schedule.md when it pays.
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
  // Of the schedules that end within SearchOptions::tolerance of the shortest makespan found, one
  // that still does when transfers over any one link take as much longer as possible.
  kSlack,
};

// A value that goes straight from a stage to a later one, such as a U-Net's, and its gradient back.
struct SearchSkip {
  int64_t from_stage = 0;
  int64_t to_stage = 1;
  // What the transfers take, if the stages are on two workers.
  double activation_transfer = 0.0;
  double gradient_transfer = 0.0;
};

// What is given once for all stages, boundaries or workers may also be given for each. Times are in
// one unit, and so is memory (bytes, or micro-batches).
struct SearchOptions {
  Placement placement = Placement::one_each(1);
  int64_t micro_batches = 1;
  // Per stage. A backward has a cost of its own: less than its halves', as a rule.
  std::vector<StageCost> costs = {{1.0, 2.0, 1.0, 1.0}};
  // Of an activation from stage s to s + 1, and of a gradient back, if they are on two workers. One
  // for each of the stages - 1 boundaries, or one for all. Empty: they take no time.
  std::vector<double> activation_transfer;
  std::vector<double> gradient_transfer;
  // Each on a link of its own beside the activations. What a skip holds belongs to activation_bytes
  // of the stage that takes it.
  std::vector<SearchSkip> skips;
  // Per stage: what a micro-batch holds from its forward to its backward, or to its input gradient;
  // and from there to its weight gradient.
  std::vector<double> activation_bytes = {1.0};
  std::vector<double> waiting_bytes = {1.0};
  // Per worker. Empty: no limit.
  std::vector<double> memory_limit;
  // Whether backwards may be split.
  bool split = true;
  Objective objective = Objective::kMakespan;
  // For kSlack: by what part the makespan may be longer.
  double tolerance = 0.05;
  // How much is tried, in simulated actions (about 10 ns each): not in time, so that the result is
  // the same each time. All that a search does counts, in the time of an action: what the
  // generators of the placement's shape take, too. At most a fifth more is used, but for these
  // generators, of which those that follow rules are looked at in any case. Default, 0: enough for
  // all of them, and some seconds.
  int64_t budget = 0;
  // Asked every few milliseconds; if it says true, the search ends with the best so far, whose
  // splits and slack are not looked at any more.
  std::function<bool()> stop;
};

struct SearchResult {
  Schedule schedule;   // ascending (ScheduleFacts)
  std::string origin;  // the generator that made it, or "search"
  // As simulate(schedule, search_routes(options), simulate_options(options)) has it.
  double makespan = 0.0;
  double lower_bound = 0.0;  // no schedule of this placement within the limits is shorter
  double slack = 0.0;  // link_slack() for the tolerance; 0 if it was stopped, or out of budget
  std::vector<double> peak_bytes;  // per worker
  int64_t actions = 0;             // how much was tried
  bool stopped = false;

  // How far it may be from the best: 0.02 is at most 2 %. Never negative: both are sums, and where
  // they are equal they may round differently.
  double gap() const {
    return lower_bound > 0.0 ? std::max(makespan / lower_bound - 1.0, 0.0) : 0.0;
  }
};

// Never worse than a generator of the placement's shape that keeps the limits (generators.h), with
// the default budget; with less, than those that follow rules.
//
// Deterministic but for `stop`. Throws std::invalid_argument for options that make no sense, and
// for limits that no schedule keeps, with what each worker needs: one micro-batch in each of its
// stages.
//
// Example:
//   SearchOptions options;
//   options.placement = Placement::v_shape(8);
//   options.micro_batches = 32;
//   options.costs = {{1.0, 1.7, 1.1, 0.7}};
//   options.memory_limit = {12.0};        // stage x micro-batch pairs, as bytes are not given
//   search(options).schedule;
SearchResult search(const SearchOptions& options);

// The costs and the skips in the form of simulate(). Without skips it needs no routes. Asked for a
// stage that the options do not have, the costs throw std::out_of_range.
SimulateOptions simulate_options(const SearchOptions& options);
Routes search_routes(const SearchOptions& options);
// The most that each worker holds. As link_slack(), it throws std::invalid_argument unless the
// schedule has the placement and the micro-batches of the options and verifies with buffered sends.
std::vector<double> peak_bytes(const Schedule& schedule, const SearchOptions& options);
// How much longer each transfer between any one pair of workers may take, in both directions, for
// the makespan to be at most `deadline`. Infinite if there are no transfers, 0 if it is longer
// anyhow, or if SearchOptions::stop says so. The schedule must be ascending and match the
// placement.
double link_slack(const Schedule& schedule, const SearchOptions& options, double deadline);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCH_H_
