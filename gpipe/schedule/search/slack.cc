#include "gpipe/schedule/search/slack.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "gpipe/schedule/search/anneal.h"

namespace gpipe::internal {
namespace {

// How often the critical path of the last run crosses the link.
int64_t crossings(const Timing& timing, const Order& order, size_t link,
                  std::vector<Timing::Place>* path) {
  timing.critical_path(order, path);
  const auto& ends = timing.links()[link];
  int64_t count = 0;
  for (size_t k = 1; k < path->size(); ++k) {
    const int32_t a = (*path)[k - 1].worker;
    const int32_t b = (*path)[k].worker;
    if (std::min(a, b) == ends[0] && std::max(a, b) == ends[1]) ++count;
  }
  return count;
}

}  // namespace

double slack_of(Timing* timing, const Order& order, double deadline,
                const std::function<bool()>& stop) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (timing->links().empty() || deadline == kNone) return kNone;
  // Sums of times near the largest double would be infinite. Times that are multiplied by a small
  // power of two have finite sums with the same digits.
  constexpr double kSmaller = 0x1p-64;
  if (deadline > std::numeric_limits<double>::max() * kSmaller) {
    const Workload smaller = timing->workload().scaled(kSmaller);
    Timing smaller_timing(smaller);
    const double slack = slack_of(&smaller_timing, order, deadline * kSmaller, stop) / kSmaller;
    timing->count(smaller_timing.actions());
    return slack;
  }
  const double most = deadline * (1.0 + 1e-12);
  if (!timing->run(order) || timing->makespan() > most) return 0.0;
  double extra = deadline;
  std::vector<Timing::Place> path;
  for (size_t link = 0; link < timing->links().size(); ++link) {
    while (timing->run(order, static_cast<int32_t>(link), extra) && timing->makespan() > most) {
      if (stop && stop()) return 0.0;
      const int64_t count = crossings(*timing, order, link, &path);
      if (count == 0) return 0.0;  // only rounding makes the order late
      const double less = (timing->makespan() - deadline) / static_cast<double>(count);
      // Here, too, only rounding makes the order late.
      if (less >= extra || extra - less == extra) return 0.0;
      extra -= less;
    }
    if (stop && stop()) return 0.0;
  }
  return extra;
}

bool give_slack(const Workload& workload, const MoreSlack& more, Timing* timing, Order* order) {
  const double unit = workload.mean_cost();
  const int64_t before = timing->actions();
  double reached = slack_of(timing, *order, more.deadline, more.ends);
  uint64_t seed = 0;
  bool found = false;
  const auto rest = [&] { return more.budget - (timing->actions() - before); };
  // A round takes at least this much work, because annealing makes a run for each link before it
  // looks at its budget.
  const int64_t least = count_of(*order) * static_cast<int64_t>(2 + timing->links().size());
  while (rest() > least && !more.stop()) {
    Annealing annealing;
    annealing.seed = ++seed;
    annealing.budget = std::min(more.round_budget, rest());
    annealing.stop = more.stop;
    annealing.bound = more.deadline;
    annealing.hot = 0.1;
    annealing.joins = more.joins;
    const double extra = reached + 0.1 * unit;
    annealing.objective = [&](Timing* timed, const Order& tried) {
      double most = timed->makespan();
      for (size_t link = 0; link < timed->links().size(); ++link) {
        timed->run(tried, static_cast<int32_t>(link), extra);
        most = std::max(most, timed->makespan());
      }
      return most;
    };
    Order tried = *order;
    anneal(workload, annealing, timing, &tried);
    const double slack = slack_of(timing, tried, more.deadline, more.ends);
    if (slack <= reached) continue;
    reached = slack;
    *order = std::move(tried);
    found = true;
  }
  return found;
}

}  // namespace gpipe::internal
