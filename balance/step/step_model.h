// StepModel: when the actions of a training step run, how long it takes, and what it holds: the one
// model of a step behind explain(), //diagnose and simulated experiments.
//
// It knows no LibTorch and measures nothing. It puts costs of stages (cut_costs.h) on a schedule
// (gpipe/schedule/simulate.h). docs/design/balance.md says what it leaves out.
#ifndef BALANCE_STEP_STEP_MODEL_H_
#define BALANCE_STEP_STEP_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "balance/step/cut_costs.h"
#include "balance/step/shared_cores.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {

// What runs a pipeline.
struct Machine {
  int64_t cores = 0;      // how many workers can compute at once; 0: all
  double contention = 1;  // how many times as long an action takes beside others
  // Of the link between any two workers. 0 bytes per second: only the latency counts.
  double bandwidth = 0;
  double latency = 0;   // seconds per transfer
  double overhead = 0;  // seconds of every action beside its layers
  // Seconds for each byte that a cell keeps for its backward while all micro-batches are held:
  // memory that is touched anew. With fewer held it is less, and with one it is nothing.
  double fresh_memory = 0;

  // Of a transfer between workers.
  double seconds(double bytes) const;
};

// A micro-batch: which of StepModel::costs are its, and its rows in units of theirs. Times, bytes
// sent and bytes held are proportional to it.
struct MicroBatch {
  size_t costs = 0;
  double size = 1;
};

// The most bytes that are held at a time, by what they are for.
struct StepMemory {
  double param_scale = 0;  // what a parameter takes, in units of its own size
  double parameters = 0;   // with that
  int64_t buffers = 0;
  double held = 0;  // by the micro-batches in flight, with a recompute
  double workspace = 0;

  // All of it. Throws std::invalid_argument for 2^62 or more, which says that `holder` takes them:
  // bytes that overflow would fit every device.
  int64_t bytes(const std::string& holder) const;
};

// A value, to be filled by its user. An action takes
//   size x (recompute + layers) + loss + overhead, copies and fresh memory.
//
// Requirements: costs with as many stages as the schedule and the same routes; `recomputed` and
// `micro_batches` for all of its cells; no two costs with early_recomputes.
//
// Example:
//   StepModel model{schedule, recomputed_cells(schedule, modes), {cut_costs(profile, balance)}};
//   model.micro_batches.resize(schedule.micro_batches());
//   model.run().makespan;
struct StepModel {
  Schedule schedule;
  std::vector<std::vector<bool>> recomputed;  // [stage][micro-batch], see recomputed_cells.h
  std::vector<CutCosts> costs;                // of micro-batches of different rows
  std::vector<MicroBatch> micro_batches = {};
  Machine machine = {};
  // As in Ablation (gpipe/ablation.h); direct_skips is told to cut_costs(). Without copy streams a
  // copy is part of both actions, of the one before it and of the one after it.
  bool copy_streams = true;
  bool early_recomputes = false;

  // Of the action's cell. Times and bytes are of a micro-batch of size 1.
  const StageCosts& stage(const Action& action) const;
  double size(const Action& action) const;
  bool is_recomputed(const Action& action) const;

  // How many forwards, of micro-batches of its size, the action runs again, and their seconds.
  double forwards_again(const Action& action) const;
  double recompute_seconds(const Action& action) const;
  // Of the action's micro-batch over the route.
  double copy_seconds(RouteId route, const Action& action) const;

  // With as many workers at once as there are. Throws as gpipe::simulate() does.
  Simulation simulate() const;
  // The same on the machine's cores.
  SharedRun run() const;

  // What a worker holds, or one of its stages alone; a parameter takes `param_scale` times its own
  // bytes.
  StepMemory worker_memory(int64_t worker, double param_scale) const;
  StepMemory stage_memory(int64_t stage, double param_scale) const;
};

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_STEP_MODEL_H_
