// simulate_speed: the throughput that a published run should have, by simulation at full size.
#ifndef GPIPE_EXPERIMENTS_ROWS_SIMULATED_SPEED_H_
#define GPIPE_EXPERIMENTS_ROWS_SIMULATED_SPEED_H_

#include <cstdint>
#include <vector>

#include "balance/step/explain.h"
#include "balance/step/machine.h"
#include "experiments/rows/layer_costs.h"
#include "experiments/rows/speed_variant.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::experiments {

// The machine of simulated rows: its links are those of PCIe 3 x16.
struct SimulatedMachine : balance::Machine {
  constexpr SimulatedMachine() : Machine{.bandwidth = 12e9, .latency = 10e-6, .overhead = 10e-6} {}
};

struct SimulatedSpeed {
  double throughput = 0;  // samples per second
  double seconds = 0;     // seconds of an epoch
  // An explanation for each kind of step that an epoch has, in the order of steps_of_epoch().
  std::vector<balance::Explanation> steps;
};

// Simulates an epoch of `samples`: every step with its own micro-batches, under `schedule` (the
// published runs had fill-drain), forward, loss and backward. The plain network has neither
// transfers nor the overhead of actions. Not simulated: the optimizer's step, and what differs
// between one epoch and the next.
//
// Throws what steps_of_epoch(), the costs and balance::explain() throw.
//
// Example:
//   LayerCosts costs = nominal_costs([] { return models::resnet101(); }, {3, 224, 224});
//   SimulatedSpeed speed = simulate_speed({"pipeline-2", 25000, 1667, {135, 235}}, 50000, costs);
//   speed.throughput;
SimulatedSpeed simulate_speed(const SpeedVariant& variant, int64_t samples, const LayerCosts& costs,
                              const balance::Machine& machine = SimulatedMachine(),
                              const ScheduleGenerator& schedule = Schedule::gpipe);

// The factor by which all times of `costs` must be multiplied so that the variant has this
// throughput, which must be above 0. Throws std::invalid_argument if no factor does it, because
// transfers and overheads alone take longer, or because the costs have no times.
double factor_for(const SpeedVariant& variant, int64_t samples, double throughput,
                  const LayerCosts& costs, const balance::Machine& machine = SimulatedMachine(),
                  const ScheduleGenerator& schedule = Schedule::gpipe);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SIMULATED_SPEED_H_
