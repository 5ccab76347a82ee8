// StepTimer, measure_loss, measure_link: times of a pipeline that runs, for a diagnosis.
#ifndef DIAGNOSE_MEASURE_H_
#define DIAGNOSE_MEASURE_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/options.h"

namespace gpipe::diagnosis {

// Times in seconds. They are medians over the steps.
struct StepTimes {
  double step = 0;
  // The time that all workers together spent in actions. On accelerators it is only the host's
  // share.
  double busy = 0;
};

// Runs and times steps of a pipeline.
class StepTimer {
 public:
  // An observer in `options` is replaced. The given tensors get no gradients; the model's
  // parameters do.
  StepTimer(GPipe pipe, const Tensors& inputs, const Tensors& targets, LossFn loss_fn,
            StepOptions options);

  // Runs a step. `counts`: whether the step is part of the result. A first step should not count,
  // because it is slower.
  void run(bool counts);

  // Requirements: at least one step has counted.
  StepTimes times() const;

 private:
  GPipe pipe_;
  Tensors inputs_;
  Tensors targets_;
  LossFn loss_fn_;
  StepOptions options_;
  std::vector<double> steps_;
  std::vector<double> busy_;
};

// Runs all timers in turns, so that other work on the machine affects all alike. A turn of a timer
// is three steps, of which the last two count. The turns go on until each timer could have had
// `seconds`, and for at least three turns. `check` is called before each step; an exception from it
// ends the measurement.
void run_in_turns(const std::vector<StepTimer*>& timers, double seconds,
                  const std::function<void()>& check = nullptr);

struct LossTimes {
  double forward = 0;
  double backward = 0;
};

// The times of the loss function alone, for these outputs of a model.
LossTimes measure_loss(const Tensors& outputs, const Tensors& targets, const LossFn& loss_fn);

struct Link {
  double bandwidth = 0;  // bytes per second; 0: transfers take their latency only
  double latency = 0;    // seconds
};

// Measures the link between the first device and the first device that differs from it. All numbers
// are 0 if all devices are the same.
Link measure_link(const std::vector<c10::Device>& devices);

// How many partitions on these devices can compute at once: one on each accelerator, and on the CPU
// as many as `cpu_cores` have room for if each has `cpu_threads` threads. At least 1, at most all.
// `cpu_cores` of 0 stands for the cores of this machine that the process may use.
int64_t partitions_at_once(const std::vector<c10::Device>& devices, int64_t cpu_threads,
                           int64_t cpu_cores);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_MEASURE_H_
