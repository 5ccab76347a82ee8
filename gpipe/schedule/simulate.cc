#include "gpipe/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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
    case ActionKind::kOffload:
    case ActionKind::kReload:
      return 0.0;
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

void check(const OffloadCosts& costs, int64_t workers) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument("simulate: OffloadCosts::" + what);
  };
  if (!(costs.to_host > 0.0) || !(costs.to_device > 0.0)) {
    std::ostringstream text;
    text << "to_host and to_device must be above 0, got " << costs.to_host << " and "
         << costs.to_device;
    refuse(text.str());
  }
  if (costs.link.empty()) return;
  if (static_cast<int64_t>(costs.link.size()) != workers) {
    refuse("link has " + std::to_string(costs.link.size()) + " numbers, but the schedule has " +
           std::to_string(workers) + " workers; give one for each, or none");
  }
  for (const int32_t link : costs.link) {
    if (link < 0 || link >= workers) {
      refuse("link has the number " + std::to_string(link) +
             "; the links of the schedule's workers are numbered from 0 to " +
             std::to_string(workers - 1));
    }
  }
}

// One simulation. Actions run in an order in which everything that an action waits for has run
// before it. If links are shared, they run in the order of their starts, too, so that copies of
// several workers take a link in the order in which they could begin.
class Simulator {
 public:
  Simulator(const Schedule& schedule, const internal::Dependencies& dependencies,
            const SimulateOptions& options)
      : schedule_(schedule),
        dependencies_(dependencies),
        options_(options),
        watches_(dependencies.has_offloads() || options.offload.bytes),
        links_(static_cast<size_t>(schedule.workers())) {
    const auto workers = static_cast<size_t>(schedule.workers());
    run_.workers.resize(workers);
    for (size_t worker = 0; worker < workers; ++worker) {
      run_.workers[worker].reserve(schedule.table()[worker].size());
    }
    run_.busy.assign(workers, 0.0);
    run_.copies.resize(workers);
    run_.reload_waits.assign(workers, 0.0);
    run_.peak.assign(workers, 0.0);
    held_.assign(workers, 0.0);
    if (watches_) {
      cells_.resize(static_cast<size_t>(schedule.stages() * schedule.micro_batches()));
    }
  }

  Simulation run() {
    if (dependencies_.has_offloads() && !options_.offload.link.empty()) {
      run_by_start();
    } else {
      for (const Position& position : dependencies_.order()) run(position, start_of(position));
    }
    for (std::vector<TimedAction>& copies : run_.copies) {
      std::stable_sort(
          copies.begin(), copies.end(),
          [](const TimedAction& a, const TimedAction& b) { return a.start < b.start; });
    }
    return std::move(run_);
  }

 private:
  using Position = internal::Position;
  struct CellState {
    double bytes = 0.0;   // of what it holds since its last part
    double copied = 0.0;  // the end of its copy to the host
    double back = 0.0;    // the end of its copy to the device
  };
  struct Request {
    double time;
    int32_t worker;
    Action offload;
  };
  struct Link {
    double to_host_free = 0.0;
    double to_device_free = 0.0;
    std::vector<Request> requests;  // copies to the host that have not been given a time
  };

  const Action& at(const Position& position) const {
    return schedule_
        .table()[static_cast<size_t>(position.worker)][static_cast<size_t>(position.index)];
  }
  CellState& cell(const Action& action) {
    return cells_[static_cast<size_t>(action.stage * schedule_.micro_batches() +
                                      action.micro_batch)];
  }
  Link& link_of(int32_t worker) {
    const std::vector<int32_t>& link = options_.offload.link;
    const auto w = static_cast<size_t>(worker);
    return links_[link.empty() ? w : static_cast<size_t>(link[w])];
  }

  // When the worker is free and all that the action needs has arrived, except by a reload.
  double start_of(const Position& position) const {
    const Action& action = at(position);
    const std::vector<TimedAction>& timeline = run_.workers[static_cast<size_t>(position.worker)];
    double start = timeline.empty() ? 0.0 : timeline.back().end;
    dependencies_.for_each_need(action, [&](const internal::Dependencies::Edge& need) {
      double arrival = run_.workers[static_cast<size_t>(need.position.worker)]
                                   [static_cast<size_t>(need.position.index)]
                                       .end;
      if (options_.transfer && need.route && need.position.worker != position.worker) {
        arrival += checked(options_.transfer({need.action, action, *need.route,
                                              need.position.worker, position.worker}),
                           [&] {
                             return "the transfer from " + need.action.to_text() + " to " +
                                    action.to_text();
                           });
      }
      start = std::max(start, arrival);
      return true;
    });
    return start;
  }

  void run(const Position& position, double start) {
    const auto worker = static_cast<size_t>(position.worker);
    const Action& action = at(position);
    double end = start;
    if (computes(action.kind)) {
      if (watches_ && action.kind != ActionKind::kForward && cell(action).back > start) {
        run_.reload_waits[worker] += cell(action).back - start;
        start = cell(action).back;
      }
      const double cost = checked(options_.action(action), [&] { return action.to_text(); });
      end = checked_time(start + cost, action);
      run_.busy[worker] += cost;
      if (watches_) hold_after(position, end);
    } else if (action.kind == ActionKind::kOffload) {
      Link& link = link_of(position.worker);
      serve(link, start);
      end = std::max(start, cell(action).copied);
      hold(worker, -cell(action).bytes);
    } else {
      double& free = link_of(position.worker).to_device_free;
      const double begin = std::max(free, start);
      free = checked_time(begin + cell(action).bytes / options_.offload.to_device, action);
      cell(action).back = free;
      run_.copies[worker].push_back({action, begin, free});
      hold(worker, cell(action).bytes);
    }
    run_.workers[worker].push_back({action, start, end});
    run_.makespan = std::max(run_.makespan, end);
  }

  void run_by_start() {
    std::vector<size_t> done(run_.workers.size(), 0);
    while (true) {
      Position first;
      double first_start = 0.0;
      for (size_t worker = 0; worker < done.size(); ++worker) {
        if (done[worker] == schedule_.table()[worker].size()) continue;
        const Position next{static_cast<int32_t>(worker), static_cast<int32_t>(done[worker])};
        const bool ready =
            dependencies_.for_each_need(at(next), [&](const internal::Dependencies::Edge& need) {
              return static_cast<size_t>(need.position.index) <
                     done[static_cast<size_t>(need.position.worker)];
            });
        if (!ready) continue;
        const double start = start_of(next);
        if (first && start >= first_start) continue;
        first = next;
        first_start = start;
      }
      if (!first) return;
      run(first, first_start);
      ++done[static_cast<size_t>(first.worker)];
    }
  }

  // Counts what the cell holds after an action that computes, and asks for its copy if the cell is
  // offloaded before its next part.
  void hold_after(const Position& position, double end) {
    const Action& action = at(position);
    const auto worker = static_cast<size_t>(position.worker);
    double bytes = 0.0;
    if (options_.offload.bytes &&
        (action.kind == ActionKind::kForward || action.kind == ActionKind::kInputGradient)) {
      bytes = checked(options_.offload.bytes(action),
                      [&] { return "what " + action.to_text() + " leaves on the device"; });
    }
    CellState& cell = this->cell(action);
    hold(worker, bytes - cell.bytes);
    cell.bytes = bytes;
    const Action offload{ActionKind::kOffload, action.stage, action.micro_batch};
    const Position out = dependencies_.find(offload);
    if (!out || out.index < position.index) return;
    const Position input =
        dependencies_.find({ActionKind::kInputGradient, action.stage, action.micro_batch});
    if (action.kind == ActionKind::kForward && input && input.index < out.index) return;
    link_of(position.worker).requests.push_back({end, position.worker, offload});
  }

  void hold(size_t worker, double more) {
    held_[worker] += more;
    run_.peak[worker] = std::max(run_.peak[worker], held_[worker]);
  }

  // Gives times to the copies to the host that could begin until then.
  void serve(Link& link, double until) {
    std::vector<Request>& requests = link.requests;
    std::stable_sort(requests.begin(), requests.end(),
                     [](const Request& a, const Request& b) { return a.time < b.time; });
    size_t served = 0;
    for (; served < requests.size() && requests[served].time <= until; ++served) {
      const Request& request = requests[served];
      CellState& cell = this->cell(request.offload);
      const double begin = std::max(link.to_host_free, request.time);
      cell.copied = link.to_host_free =
          checked_time(begin + cell.bytes / options_.offload.to_host, request.offload);
      run_.copies[static_cast<size_t>(request.worker)].push_back(
          {request.offload, begin, cell.copied});
    }
    requests.erase(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(served));
  }

  const Schedule& schedule_;
  const internal::Dependencies& dependencies_;
  const SimulateOptions& options_;
  const bool watches_;  // whether anything is known of cells
  Simulation run_;
  std::vector<CellState> cells_;
  std::vector<double> held_;  // [worker] what its cells hold now
  std::vector<Link> links_;
};

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
  check(options.offload, schedule.workers());
  return Simulator(schedule, dependencies, options).run();
}

}  // namespace gpipe
