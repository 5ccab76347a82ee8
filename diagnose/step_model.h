// model_step: how long a step of a setup takes, with or without what makes it longer.
#ifndef DIAGNOSE_STEP_MODEL_H_
#define DIAGNOSE_STEP_MODEL_H_

#include <cstdint>
#include <vector>

#include "balance/partition.h"
#include "diagnose/costs.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::diagnosis {

// What runs the pipeline.
struct Machine {
  int64_t cores = 0;      // how many partitions can compute at once; 0: all
  double contention = 1;  // how many times as long an action takes beside others
  // Of the link between any two partitions. 0 bytes per second: only the latency counts.
  double bandwidth = 0;
  double latency = 0;  // seconds per transfer
};

// What is counted beside the layers' work and the schedule's order.
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
  double busiest = 0;  // seconds of work, without recompute, of the worker that has most
  double work = 0;     // of all workers
  std::vector<ModeledPartition> partitions;
};

// A step of a mini-batch of `rows` rows. Unlike balance::explain() it knows partitions of different
// checkpoint modes, a shorter last micro-batch, and costs by rows.
//
// Throws std::invalid_argument for a schedule that does not fit or cannot run.
ModeledStep model_step(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                       const Machine& machine, const Effects& effects = {});

// The most bytes that each partition holds at a time, as balance::explain() counts them.
std::vector<int64_t> model_memory(const Costs& costs, int64_t rows, const PipelineSetup& setup,
                                  double param_scale);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_STEP_MODEL_H_
