// Published speed: the published runs of the speed experiment and their results.
#ifndef GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_

#include <vector>

#include "experiments/common/report.h"
#include "experiments/common/speed_run.h"

namespace gpipe::experiments {

// baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8, with ResNet-101 of 370 layers.
const std::vector<SpeedVariant>& speed_variants();

// Columns: "throughput" and its ratio to the baseline's, "speed_up".
PublishedTable published_speed();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_
