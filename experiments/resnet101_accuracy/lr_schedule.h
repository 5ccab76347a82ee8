// LrSchedule: the learning rate of the accuracy benchmark.
//
// It has linear scaling with the batch, gradual warm-up, and steps (Goyal et al., "Accurate, Large
// Minibatch SGD", 2017, section 2).
#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_LR_SCHEDULE_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_LR_SCHEDULE_H_

#include <cstdint>

namespace gpipe::experiments {

enum class LrDecay {
  kSteps,   // divided by 10 after 30, 60 and 80 of 90 epochs: the published run
  kLinear,  // straight to zero, for short runs in which the steps would come too early
};

struct LrSchedule {
  int64_t batch_size = 256;
  int64_t steps_per_epoch = 1;
  // Epochs of the whole run. The published run has 90; with another number, warm-up and steps come
  // at the same shares of the run. Default: 90.
  int64_t epochs = 90;
  // The batch whose learning rate is `base`. A larger one gets more in proportion; a smaller one
  // gets no less. Default: 256.
  int64_t reference_batch = 256;
  double base = 0.1;
  LrDecay decay = LrDecay::kSteps;

  // The learning rate of 0-based step `step`.
  double at(int64_t step) const;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_LR_SCHEDULE_H_
