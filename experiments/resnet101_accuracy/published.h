// Published accuracy: the published results of the accuracy experiment.
#ifndef GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_

#include "experiments/frame/report.h"

namespace gpipe::experiments {

// One row for each published row and for each experiment, in the order of the published table.
// Columns: "top1_error_percent", "throughput" and its ratio to dataparallel-256, "speed_up".
PublishedTable published_accuracy();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_ACCURACY_PUBLISHED_H_
