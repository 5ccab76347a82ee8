// Published U-Net memory: the published runs of the U-Net memory experiment and their results.
#ifndef GPIPE_EXPERIMENTS_UNET_MEMORY_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_UNET_MEMORY_PUBLISHED_H_

#include "experiments/rows/memory_experiment.h"

namespace gpipe::experiments {

// The runs: baseline, pipeline-1, pipeline-2, pipeline-4, pipeline-8.
MemoryExperiment unet_memory();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_UNET_MEMORY_PUBLISHED_H_
