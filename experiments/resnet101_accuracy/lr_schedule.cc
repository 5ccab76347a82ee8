#include "experiments/resnet101_accuracy/lr_schedule.h"

#include <algorithm>

namespace gpipe::experiments {
namespace {

constexpr double kPublishedEpochs = 90;
// The length of the warm-up in the published code. (Goyal et al. warm up for five epochs.)
constexpr double kWarmUpEpochs = 4;

double decayed(LrDecay decay, double epoch) {
  if (decay == LrDecay::kLinear) return std::max(1 - epoch / kPublishedEpochs, 0.0);
  if (epoch < 30) return 1;
  if (epoch < 60) return 0.1;
  if (epoch < 80) return 0.01;
  return 0.001;
}

}  // namespace

double LrSchedule::at(int64_t step) const {
  // The progress of training, converted to epochs of the published run.
  const double epoch = static_cast<double>(step) * kPublishedEpochs /
                       (static_cast<double>(steps_per_epoch) * static_cast<double>(epochs));
  const double multiple =
      std::max(1.0, static_cast<double>(batch_size) / static_cast<double>(reference_batch));
  const double warm = std::min(kWarmUpEpochs, epoch) / kWarmUpEpochs;
  return base * (1 + warm * (multiple - 1)) * decayed(decay, epoch);
}

}  // namespace gpipe::experiments
