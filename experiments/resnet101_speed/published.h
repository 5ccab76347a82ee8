// speed_variants: the published runs of the ResNet-101 speed experiment and their results, in two
// editions.
#ifndef GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_

#include <vector>

#include "experiments/frame/edition.h"
#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// The runs. kCurrent: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8, with ResNet-101 of
// 370 layers. kJune2019: naive-1 and the same pipelines, with the older model of 304 layers. The
// settings of the runs published in June are not known; these are the ones of torchgpipe's own
// script of four days later.
const std::vector<SpeedVariant>& speed_variants(Edition edition);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RESNET101_SPEED_PUBLISHED_H_
