// run_speed, measure_speed: the speed experiments' procedure: whole training steps on one
// mini-batch that is made once.
#ifndef GPIPE_EXPERIMENTS_ROWS_SPEED_RUN_H_
#define GPIPE_EXPERIMENTS_ROWS_SPEED_RUN_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

#include "experiments/frame/program.h"
#include "experiments/frame/report.h"
#include "experiments/frame/trainer.h"
#include "experiments/rows/row.h"

namespace gpipe::experiments {

struct SpeedOptions {
  std::string title;
  int64_t samples = 0;      // samples of an epoch
  int64_t epochs = 1;       // epochs of a round
  int64_t skip_epochs = 1;  // first epochs of a round, left out of averages if others remain
  // Whether to report "utilization": the mean share of a whole step, in percent, in which the
  // workers of a pipeline are in actions, over the epochs that count.
  bool utilization = false;
  std::string trace;  // file for the timeline of a pipeline's last whole step; empty: none
  // What only measure_speed() does: whether to report "memory", the peaks of all devices in GiB,
  // and the setting "diagnosis" (explain_run()).
  bool memory = false;
  bool explain = false;
};

// Trains for some epochs on the same `input` [batch, ...] and `target`. An epoch has samples /
// batch steps and a shorter one for the rest; its time is taken between two synchronizations of the
// input's device (torchgpipe's procedure, benchmarks/*-speed). After each epoch it puts
// "throughput" (samples per second; the mean over the epochs, those of earlier rounds too) and the
// epochs themselves into the outcome, with kMeasured or, if the user stopped it, kInterrupted (then
// there is no trace). The trace is of the last round. Throws what the trainer throws, and
// std::invalid_argument for fewer samples than a step takes.
void run_speed(Trainer& trainer, torch::optim::Optimizer& optimizer, const at::Tensor& input,
               const at::Tensor& target, const SpeedOptions& options, const RunContext& context,
               Outcome& outcome);

// run_speed() of a row, with plain SGD. A row without a whole mini-batch has a smaller one.
void measure_speed(const Row& row, const SpeedOptions& options, const RunContext& context,
                   Outcome& outcome);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_SPEED_RUN_H_
