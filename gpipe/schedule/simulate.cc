#include "gpipe/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/dependencies.h"
#include "gpipe/schedule/verify.h"

namespace gpipe {
namespace {

double cost_of(const StageCost& cost, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return cost.forward;
    case ActionKind::kBackward:
      return cost.backward;
    case ActionKind::kInputGradient:
      return cost.input_gradient;
    case ActionKind::kWeightGradient:
      return cost.weight_gradient;
  }
  (void)letter(kind);  // throws, because `kind` is not one of the kinds
  return 0.0;
}

// Returns the cost, or throws if it is negative or not finite. `what` makes the text that names the
// cost; it is called only for the error.
template <typename What>
double checked(double cost, const What& what) {
  if (std::isfinite(cost) && cost >= 0.0) return cost;
  std::ostringstream text;  // shows small numbers, which std::to_string does not
  text << "simulate: the cost of " << what() << " must be finite and at least 0, got " << cost;
  throw std::invalid_argument(text.str());
}

// Returns the time, or throws if it is not finite, because finite costs may add up to more than a
// double holds.
double checked_time(double time, const Action& action) {
  if (std::isfinite(time)) return time;
  throw std::invalid_argument("simulate: the costs up to " + action.to_text() +
                              " add up to more than a double holds; give them in a larger unit");
}

}  // namespace

ActionCost uniform_cost(StageCost cost) {
  return [cost](const Action& action) { return cost_of(cost, action.kind); };
}

ActionCost stage_costs(std::vector<StageCost> costs) {
  return [costs = std::move(costs)](const Action& action) {
    if (action.stage < 0 || static_cast<size_t>(action.stage) >= costs.size()) {
      throw std::out_of_range("stage_costs: no cost was given for the stage of " +
                              action.to_text() + ", there are costs for " +
                              std::to_string(costs.size()) + " stages: give one for each");
    }
    return cost_of(costs[static_cast<size_t>(action.stage)], action.kind);
  };
}

double Simulation::bubble(int64_t worker) const {
  if (worker < 0 || worker >= static_cast<int64_t>(busy.size())) {
    throw std::out_of_range("Simulation::bubble: there is no worker " + std::to_string(worker) +
                            ", the simulation has " + std::to_string(busy.size()) +
                            ", counted from 0");
  }
  const double time = busy[static_cast<size_t>(worker)];
  return makespan > 0.0 ? 1.0 - time / makespan : 0.0;
}

double Simulation::bubble_ratio() const {
  if (busy.empty()) return 0.0;
  double sum = 0.0;
  for (size_t worker = 0; worker < busy.size(); ++worker)
    sum += bubble(static_cast<int64_t>(worker));
  return sum / static_cast<double>(busy.size());
}

std::ostream& operator<<(std::ostream& out, const StageCost& cost) {
  return out << "F " << cost.forward << " B " << cost.backward << " I " << cost.input_gradient
             << " W " << cost.weight_gradient;
}

std::ostream& operator<<(std::ostream& out, const TimedAction& timed) {
  return out << timed.action << " " << timed.start << ".." << timed.end;
}

std::ostream& operator<<(std::ostream& out, const Simulation& run) {
  out << "makespan " << run.makespan << "\n";
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    out << "worker " << worker << ":";
    for (const TimedAction& timed : run.workers[worker]) out << " " << timed;
    out << "\n";
  }
  return out;
}

Simulation simulate(const Schedule& schedule, const SimulateOptions& options) {
  return simulate(schedule, Routes::create(schedule.stages()), options);
}

Simulation simulate(const Schedule& schedule, const Routes& routes,
                    const SimulateOptions& options) {
  if (!options.action) {
    throw std::invalid_argument(
        "simulate: SimulateOptions::action is empty; give a cost, as uniform_cost({}) is");
  }
  const internal::Dependencies dependencies(schedule.stages(), schedule.micro_batches(),
                                            schedule.table(), routes);
  internal::check_buffered(schedule.stages(), schedule.micro_batches(), schedule.table(), routes,
                           dependencies);

  Simulation run;
  run.workers.resize(static_cast<size_t>(schedule.workers()));
  for (size_t worker = 0; worker < run.workers.size(); ++worker) {
    run.workers[worker].reserve(schedule.table()[worker].size());
  }
  run.busy.assign(run.workers.size(), 0.0);
  for (const internal::Position& position : dependencies.order()) {
    const auto worker = static_cast<size_t>(position.worker);
    const Action& action = schedule.table()[worker][static_cast<size_t>(position.index)];
    std::vector<TimedAction>& timeline = run.workers[worker];
    double start = timeline.empty() ? 0.0 : timeline.back().end;
    dependencies.for_each_need(action, [&](const internal::Dependencies::Edge& need) {
      double arrival = run.workers[static_cast<size_t>(need.position.worker)]
                                  [static_cast<size_t>(need.position.index)]
                                      .end;
      if (options.transfer && need.route && need.position.worker != position.worker) {
        arrival += checked(options.transfer({need.action, action, *need.route, need.position.worker,
                                             position.worker}),
                           [&] {
                             return "the transfer from " + need.action.to_text() + " to " +
                                    action.to_text();
                           });
      }
      start = std::max(start, arrival);
      return true;
    });
    const double cost = checked(options.action(action), [&] { return action.to_text(); });
    const double end = checked_time(start + cost, action);
    timeline.push_back({action, start, end});
    run.busy[worker] += cost;
    run.makespan = std::max(run.makespan, end);
  }
  return run;
}

}  // namespace gpipe
