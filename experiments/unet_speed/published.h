// speed_variants: the published runs of the U-Net speed experiment and their results.
#ifndef GPIPE_EXPERIMENTS_UNET_SPEED_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_UNET_SPEED_PUBLISHED_H_

#include <vector>

#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// The runs: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8, with U-Net (5, 64) of 241
// layers.
const std::vector<SpeedVariant>& speed_variants();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_UNET_SPEED_PUBLISHED_H_
