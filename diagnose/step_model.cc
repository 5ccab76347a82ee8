#include "diagnose/step_model.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "balance/step/cut_costs.h"
#include "balance/step/recomputed_cells.h"
#include "balance/step/step_model.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::diagnosis {
namespace {

using balance::CutCosts;
using balance::Profile;
using balance::StageCosts;

CutCosts cut_of(const Costs& costs, int64_t rows, const PipelineSetup& setup) {
  const Profile profile = costs.at(rows);
  CutCosts cut = balance::cut_costs(profile, setup.balance, setup.direct_skips);
  StageCosts& last = cut.stages.back();
  last.loss_forward = costs.loss_forward * static_cast<double>(profile.batch_rows);
  last.loss_backward = costs.loss_backward * static_cast<double>(profile.batch_rows);
  return cut;
}

// A model with the costs of a full micro-batch. The costs of a short last micro-batch, and the
// machine, are still missing.
balance::StepModel model_of(const Costs& costs, const ChunkSizes& sizes,
                            const PipelineSetup& setup) {
  const Schedule schedule = setup.schedule_for(sizes.micro_batches);
  balance::StepModel model{schedule,
                           balance::recomputed_cells(schedule, setup.checkpoints),
                           {cut_of(costs, sizes.rows, setup)}};
  model.micro_batches.resize(static_cast<size_t>(sizes.micro_batches));
  return model;
}

}  // namespace

ModeledStep model_step(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                       const Machine& machine, const Effects& effects) {
  const ChunkSizes sizes = chunk_sizes(rows, setup.chunks);
  balance::StepModel model = model_of(costs, sizes, setup);
  const int64_t last_rows = rows - sizes.rows * (sizes.micro_batches - 1);
  if (last_rows != sizes.rows) {
    model.costs.push_back(cut_of(costs, last_rows, setup));
    model.micro_batches.back().costs = 1;
  }
  if (effects.machine) {
    model.machine = machine;
    model.fresh_memory = costs.fresh_memory;
  }
  model.machine.bandwidth = effects.transfers ? machine.bandwidth : 0;
  model.machine.latency = effects.transfers ? machine.latency : 0;

  ModeledStep result;
  std::vector<double> workers(static_cast<size_t>(model.schedule.workers()));
  for (int64_t j = 0; j < model.schedule.stages(); ++j) {
    ModeledPartition partition;
    for (int64_t m = 0; m < sizes.micro_batches; ++m) {
      const Action forward{ActionKind::kForward, static_cast<int32_t>(j), static_cast<int32_t>(m)};
      const StageCosts& stage = model.stage(forward);
      partition.layers = stage.layers;
      partition.work += stage.forward + stage.backward + stage.loss_forward + stage.loss_backward;
      if (model.is_recomputed(forward)) partition.recompute += stage.recompute;
    }
    workers[static_cast<size_t>(model.schedule.worker_of(j))] += partition.work;
    result.work += partition.work;
    result.partitions.push_back(partition);
  }
  result.busiest = *std::max_element(workers.begin(), workers.end());

  if (!effects.recompute) {
    for (CutCosts& cut : model.costs) {
      for (StageCosts& stage : cut.stages) stage.recompute = 0;
    }
  }
  const balance::SharedRun run = model.run();
  result.step = run.makespan;
  for (const double busy : run.busy) result.busy += busy;
  return result;
}

ModeledMemory model_memory(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                           double param_scale) {
  const balance::StepModel model = model_of(costs, chunk_sizes(rows, setup.chunks), setup);
  ModeledMemory result;
  for (int64_t j = 0; j < model.schedule.stages(); ++j) {
    result.partitions.push_back(
        model.stage_memory(j, param_scale).bytes("partition " + std::to_string(j)));
  }
  for (int64_t worker = 0; worker < model.schedule.workers(); ++worker) {
    result.workers.push_back(
        model.worker_memory(worker, param_scale).bytes("worker " + std::to_string(worker)));
  }
  return result;
}

}  // namespace gpipe::diagnosis
