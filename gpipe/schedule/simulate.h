// simulate: when each action of a schedule would start and end, given what it costs.
//
// An action starts as soon as its worker is free and its inputs have arrived, as when the runtime
// runs a program.
//
// Two things are not modeled: contention between transfers (each has a link of its own), and a
// worker that must help with a transfer. Costs are in any unit; the results are in the same unit.
#ifndef GPIPE_SCHEDULE_SIMULATE_H_
#define GPIPE_SCHEDULE_SIMULATE_H_

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct StageCost {
  double forward = 1.0;
  double backward = 1.0;
  double input_gradient = 1.0;
  double weight_gradient = 1.0;

  // Writes "F 1 B 2 I 1 W 1".
  friend std::ostream& operator<<(std::ostream& out, const StageCost& cost);
};

// A value in transit over `route` (an id of the routes), from the action that produces it to the
// one that needs it.
struct Transfer {
  Action producer;
  Action consumer;
  RouteId route{};
  int32_t from_worker = 0;
  int32_t to_worker = 0;
};

// Both functions must return finite times of at least 0.
using ActionCost = std::function<double(const Action&)>;
using TransferCost = std::function<double(const Transfer&)>;

// uniform_cost(): the same cost for every stage. stage_costs(): one cost for each stage. The
// functions throw std::out_of_range for a stage without a cost, and std::invalid_argument for an
// invalid kind of action. For a cost per cell, write a function of your own.
ActionCost uniform_cost(StageCost cost);
ActionCost stage_costs(std::vector<StageCost> costs);

// What offloads and reloads cost. The link between a device and the host copies in both directions
// at once. In each direction one copy follows the other, in the order in which they could begin:
// to the host when the cell has run, to the device at the reload's place in the table.
struct OffloadCosts {
  // What a cell holds alone after this action, a forward or the input gradient of a split backward,
  // until its next part has ended. A finite number of at least 0, in bytes or any other unit. If
  // the function is empty, copies take no time, and nothing is counted.
  std::function<double(const Action&)> bytes;
  // Bytes per unit of time, above 0.
  double to_host = std::numeric_limits<double>::infinity();
  double to_device = std::numeric_limits<double>::infinity();
  // [worker] the number of its link, at least 0: workers of one device, or of devices behind one
  // switch, may have the same. Empty: each worker has a link of its own.
  std::vector<int32_t> link;
};

struct SimulateOptions {
  // Not called for offloads and reloads, which take no time of the worker's but what they wait.
  ActionCost action = uniform_cost({});
  // `transfer` is not called for transfers inside a worker, which take no time. If it is empty, no
  // transfer takes time.
  TransferCost transfer;
  OffloadCosts offload = {};
};

struct TimedAction {
  Action action;
  double start = 0.0;
  double end = 0.0;

  // Writes "F0.3 4..5": the action, from its start to its end.
  friend std::ostream& operator<<(std::ostream& out, const TimedAction& timed);
};

struct Simulation {
  std::vector<std::vector<TimedAction>> workers;  // in the order of the schedule
  // The end of the last action; the first starts at 0.
  double makespan = 0.0;
  std::vector<double> busy;  // per worker, the time spent in actions
  // Per worker, the copies of its offloads and reloads, in the order in which they begin.
  std::vector<std::vector<TimedAction>> copies;
  // Per worker, how long actions waited for reloads when all else that they need was there.
  std::vector<double> reload_waits;
  // Per worker, the most that its cells held on the device at once (OffloadCosts::bytes; 0 without
  // it). A forward's share counts from its start.
  std::vector<double> peak;

  // Share of the makespan in which the worker is idle, 0 .. 1; 0 if the makespan is 0. Throws
  // std::out_of_range for a worker that does not exist.
  double bubble(int64_t worker) const;
  // The mean of bubble() over the workers; 0 if there are no workers.
  double bubble_ratio() const;

  // Writes the makespan, and a line for each worker.
  friend std::ostream& operator<<(std::ostream& out, const Simulation& run);
};

// Simulates a run; deterministic.
//
// Throws std::invalid_argument if the schedule does not verify with buffered sends, for a cost that
// is negative or not finite, for costs whose sum is not finite, if SimulateOptions::action is
// empty, and for OffloadCosts that are not as described.
//
// Example:
//   Simulation run = simulate(Schedule::gpipe(4, 8), {uniform_cost({1.0, 2.0})});
//   run.makespan;                   // (8 + 4 - 1) * (1.0 + 2.0)
//   run.workers[3].front().start;   // 3.0: the fill
Simulation simulate(const Schedule& schedule, const SimulateOptions& options = {});
Simulation simulate(const Schedule& schedule, const Routes& routes,
                    const SimulateOptions& options = {});

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SIMULATE_H_
