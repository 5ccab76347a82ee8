// model_step: how long a step of a setup takes, with or without the effects that make it longer.
#ifndef DIAGNOSE_STEP_MODEL_H_
#define DIAGNOSE_STEP_MODEL_H_

#include <cstdint>
#include <vector>

#include "balance/cut/partition.h"
#include "balance/step/step_model.h"
#include "diagnose/costs.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::diagnosis {

using balance::Machine;

// Which effects are counted in addition to the layers' work and the schedule's order.
struct Effects {
  bool recompute = true;
  bool transfers = true;
  bool machine = true;  // fewer cores than partitions, contention, memory touched anew
};

struct ModeledPartition {
  balance::LayerRange layers{};
  double work = 0;  // seconds in a step: forwards, backwards, the loss
  double recompute = 0;
};

struct ModeledStep {
  double step = 0;     // seconds
  double busy = 0;     // seconds that all workers together spend in actions
  double busiest = 0;  // seconds of work, without recompute, of the worker that has the most
  double work = 0;     // seconds of work of all workers
  std::vector<ModeledPartition> partitions;
};

// Models a step of a mini-batch of `rows` rows, with balance::StepModel. Unlike balance::explain()
// it takes into account costs by rows, the loss, and memory that is touched anew.
//
// Throws std::invalid_argument for a schedule that does not fit or cannot run.
ModeledStep model_step(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                       const Machine& machine, const Effects& effects = {});

// The most bytes that are held at a time, as balance::explain() counts them.
struct ModeledMemory {
  std::vector<int64_t> partitions;  // bytes of each partition alone
  std::vector<int64_t> workers;     // bytes of all partitions of each worker together
};

ModeledMemory model_memory(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                           double param_scale);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_STEP_MODEL_H_
