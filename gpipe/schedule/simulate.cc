#include "gpipe/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpipe/schedule/dependencies.h"

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
  throw std::invalid_argument("not a kind of action");
}

double checked(double cost, const std::string& what) {
  if (std::isfinite(cost) && cost >= 0.0) return cost;
  throw std::invalid_argument("simulate: the cost of " + what +
                              " must be finite and at least 0, got " + std::to_string(cost));
}

}  // namespace

ActionCost uniform_cost(StageCost cost) {
  return [cost](const Action& action) { return cost_of(cost, action.kind); };
}

ActionCost stage_costs(std::vector<StageCost> costs) {
  return [costs = std::move(costs)](const Action& action) {
    return cost_of(costs.at(static_cast<size_t>(action.stage)), action.kind);
  };
}

double Simulation::bubble(int64_t worker) const {
  const double time = busy.at(static_cast<size_t>(worker));
  return makespan > 0.0 ? 1.0 - time / makespan : 0.0;
}

double Simulation::bubble_ratio() const {
  double sum = 0.0;
  for (size_t worker = 0; worker < busy.size(); ++worker)
    sum += bubble(static_cast<int64_t>(worker));
  return sum / static_cast<double>(busy.size());
}

Simulation simulate(const Schedule& schedule, const SimulateOptions& options) {
  return simulate(schedule, Routes::create(schedule.stages()), options);
}

Simulation simulate(const Schedule& schedule, const Routes& routes,
                    const SimulateOptions& options) {
  schedule.verify(routes, Sends::kBuffered);
  const internal::Dependencies dependencies(schedule.stages(), schedule.micro_batches(),
                                            schedule.table(), routes);

  Simulation run;
  run.workers.resize(static_cast<size_t>(schedule.workers()));
  run.busy.assign(run.workers.size(), 0.0);
  for (const internal::Position& position : dependencies.order()) {
    const auto worker = static_cast<size_t>(position.worker);
    const Action& action = schedule.table()[worker][static_cast<size_t>(position.index)];
    std::vector<TimedAction>& timeline = run.workers[worker];
    double start = timeline.empty() ? 0.0 : timeline.back().end;
    for (const auto& need : dependencies.needs(action)) {
      double arrival = run.workers[static_cast<size_t>(need.position.worker)]
                                  [static_cast<size_t>(need.position.index)]
                                      .end;
      if (options.transfer && need.position.worker != position.worker) {
        arrival +=
            checked(options.transfer(
                        {need.action, action, need.route, need.position.worker, position.worker}),
                    "the transfer from " + need.action.to_text() + " to " + action.to_text());
      }
      start = std::max(start, arrival);
    }
    const double cost = checked(options.action(action), action.to_text());
    timeline.push_back({action, start, start + cost});
    run.busy[worker] += cost;
    run.makespan = std::max(run.makespan, start + cost);
  }
  return run;
}

}  // namespace gpipe
