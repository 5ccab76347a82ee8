#include "gpipe/schedule/search/join.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/schedule/dependencies.h"

namespace gpipe {
namespace {

using Times = std::vector<std::vector<double>>;

// For each action, the latest end with which the makespan does not grow. `end` is bounded by the
// worker's next action and by the actions that receive the results.
struct Latest {
  Times end;
  Times sent;  // bounded only by the actions that receive the results
};

Latest latest_ends(const Schedule& schedule, const SimulateOptions& costs,
                   const internal::Dependencies& dependencies,
                   const std::vector<internal::Position>& order, double makespan) {
  Latest latest;
  for (const std::vector<Action>& actions : schedule.table()) {
    latest.end.emplace_back(actions.size(), makespan);
  }
  latest.sent = latest.end;
  for (size_t k = order.size(); k-- > 0;) {
    const auto worker = static_cast<size_t>(order[k].worker);
    const auto index = static_cast<size_t>(order[k].index);
    const Action& action = schedule.table()[worker][index];
    double& end = latest.end[worker][index];
    end = std::min(end, latest.sent[worker][index]);
    const double start = end - costs.action(action);
    if (index > 0) latest.end[worker][index - 1] = std::min(latest.end[worker][index - 1], start);
    dependencies.for_each_need(action, [&](const internal::Dependencies::Edge& need) {
      const internal::Position from = need.position;
      double by = start;
      if (costs.transfer && need.route && from.worker != order[k].worker) {
        by -= costs.transfer({need.action, action, *need.route, from.worker, order[k].worker});
      }
      if (!need.route) return true;  // the worker's own list bounds this end already
      double& sent = latest.sent[static_cast<size_t>(from.worker)][static_cast<size_t>(from.index)];
      sent = std::min(sent, by);
      return true;
    });
  }
  return latest;
}

}  // namespace

Schedule joined(const Schedule& schedule, const SimulateOptions& costs) {
  return joined(schedule, Routes::create(schedule.stages()), costs);
}

Schedule joined(const Schedule& schedule, const Routes& routes, const SimulateOptions& costs) {
  const double makespan = simulate(schedule, routes, costs).makespan;
  const internal::Dependencies dependencies(schedule.stages(), schedule.micro_batches(),
                                            schedule.table(), routes);
  if (dependencies.has_offloads()) {
    throw std::invalid_argument(
        "joined: the schedule has offloads, whose places depend on its other actions; join the "
        "schedule without them (without_offloads), and add them afterwards (with_offloads)");
  }
  const std::vector<internal::Position> order = dependencies.order();
  const Latest latest = latest_ends(schedule, costs, dependencies, order, makespan);
  const double same = 1e-12 * makespan;
  std::vector<std::vector<Action>> table = schedule.table();
  std::vector<std::vector<bool>> gone;
  Times ends;
  for (const std::vector<Action>& actions : table) {
    gone.emplace_back(actions.size(), false);
    ends.emplace_back(actions.size(), 0.0);
  }
  // Invariant: every action begins as soon as it can, and no later than it must. Joining two halves
  // keeps the invariant.
  for (const internal::Position& position : order) {
    const auto worker = static_cast<size_t>(position.worker);
    const auto index = static_cast<size_t>(position.index);
    const std::vector<Action>& actions = schedule.table()[worker];
    const Action& action = actions[index];
    double start = index > 0 ? ends[worker][index - 1] : 0.0;
    double& end = ends[worker][index];
    if (gone[worker][index]) {
      end = start;
      continue;
    }
    dependencies.for_each_need(action, [&](const internal::Dependencies::Edge& need) {
      const internal::Position from = need.position;
      double arrival = ends[static_cast<size_t>(from.worker)][static_cast<size_t>(from.index)];
      if (costs.transfer && need.route && from.worker != position.worker) {
        arrival += costs.transfer({need.action, action, *need.route, from.worker, position.worker});
      }
      start = std::max(start, arrival);
      return true;
    });
    const double takes = costs.action(action);
    end = start + takes;
    if (action.kind != ActionKind::kInputGradient || index + 1 == actions.size()) continue;
    const Action weight{ActionKind::kWeightGradient, action.stage, action.micro_batch};
    if (actions[index + 1] != weight) continue;
    const Action whole{ActionKind::kBackward, action.stage, action.micro_batch};
    const double together = costs.action(whole);
    if (together > (takes + costs.action(weight)) * (1.0 + 1e-12)) continue;
    const double by = std::min(latest.sent[worker][index], latest.end[worker][index + 1]);
    if (start + together > by + same) continue;
    table[worker][index] = whole;
    gone[worker][index + 1] = true;
    end = start + together;
  }
  for (size_t worker = 0; worker < table.size(); ++worker) {
    size_t kept = 0;
    for (size_t k = 0; k < table[worker].size(); ++k) {
      if (!gone[worker][k]) table[worker][kept++] = table[worker][k];
    }
    table[worker].resize(kept);
  }
  return Schedule::create(schedule.stages(), schedule.micro_batches(), std::move(table));
}

int64_t splits(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Action>& actions : schedule.table()) {
    count += std::count_if(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kInputGradient;
    });
  }
  return count;
}

}  // namespace gpipe
