// StepModel: when the actions of a training step run, how long the step takes, and the memory that
// it holds. explain(), //diagnose and simulated experiments all use this one model.
//
// Needs no LibTorch and measures nothing. It applies the costs of stages (cut_costs.h) to a
// schedule (gpipe/schedule/simulate.h). docs/design/balance.md says what it leaves out.
#ifndef BALANCE_STEP_STEP_MODEL_H_
#define BALANCE_STEP_STEP_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "balance/step/cut_costs.h"
#include "balance/step/machine.h"
#include "balance/step/shared_cores.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {

// A micro-batch: the index of its costs in StepModel::costs, and its rows in units of their rows.
// Times, bytes sent and bytes held are proportional to its rows.
struct MicroBatch {
  size_t costs = 0;
  double size = 1;
};

// The most bytes that are held at a time, by purpose.
struct StepMemory {
  double param_scale = 0;  // bytes for each byte of a parameter
  double parameters = 0;   // bytes of parameters times param_scale
  int64_t buffers = 0;
  double held = 0;  // bytes of the micro-batches in flight, including a recompute
  double workspace = 0;

  // The sum. Throws std::invalid_argument for 2^62 bytes or more, with `holder` as the one that
  // takes them: bytes that overflow would seem to fit every device.
  int64_t bytes(const std::string& holder) const;
};

// A value type whose fields the user sets. An action takes
//   size x (recompute + layers) + loss + overhead, copies and fresh memory.
//
// Requirements: `costs` have as many stages as the schedule and the same routes; `recomputed` and
// `micro_batches` cover all cells; with early_recomputes there is only one element of `costs`.
//
// Example:
//   StepModel model{schedule, recomputed_cells(schedule, modes), {cut_costs(profile, balance)}};
//   model.micro_batches.resize(schedule.micro_batches());
//   model.run().makespan;
struct StepModel {
  Schedule schedule;
  std::vector<std::vector<bool>> recomputed;  // [stage][micro-batch], see recomputed_cells.h
  std::vector<CutCosts> costs;                // costs of micro-batches with different rows
  std::vector<MicroBatch> micro_batches = {};
  Machine machine = {};
  // As in Ablation (gpipe/ablation.h); direct_skips is an argument of cut_costs(). Without copy
  // streams a copy takes time in both actions, the one before it and the one after it.
  bool copy_streams = true;
  bool early_recomputes = false;
  // Seconds for each byte that a cell keeps for its backward while all micro-batches are held, as
  // the memory is touched for the first time. With fewer micro-batches held it is less, and with
  // one it is 0.
  double fresh_memory = 0;

  // The costs, size and mode of the action's cell. Times and bytes are those of a micro-batch of
  // size 1.
  const StageCosts& stage(const Action& action) const;
  double size(const Action& action) const;
  bool is_recomputed(const Action& action) const;

  // The number of forwards (of micro-batches of its size) that the action runs again, and their
  // seconds.
  double forwards_again(const Action& action) const;
  double recompute_seconds(const Action& action) const;
  // Seconds to copy the action's micro-batch over the route.
  double copy_seconds(RouteId route, const Action& action) const;

  // The bytes that an offload behind `after`, a forward or the first half of a backward, brings to
  // the host.
  double offloaded(const Action& after) const;

  // The costs of simulate() and of with_offloads(). Requirements: the model outlives them.
  SimulateOptions simulate_options() const;
  // Simulates all workers at the same time. Throws as gpipe::simulate() does.
  Simulation simulate() const;
  // The simulation on the machine's cores.
  SharedRun run() const;

  // The memory that a worker holds, or one of its stages alone. `param_scale`: bytes for each byte
  // of a parameter.
  StepMemory worker_memory(int64_t worker, double param_scale) const;
  StepMemory stage_memory(int64_t stage, double param_scale) const;
};

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_STEP_MODEL_H_
