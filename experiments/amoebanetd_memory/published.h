// Published AmoebaNet-D memory: the published runs of the AmoebaNet-D memory experiment and their
// results, of both editions.
#ifndef GPIPE_EXPERIMENTS_AMOEBANETD_MEMORY_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_AMOEBANETD_MEMORY_PUBLISHED_H_

#include "experiments/frame/edition.h"
#include "experiments/rows/memory_experiment.h"

namespace gpipe::experiments {

// The runs: baseline (in the older edition naive-1), pipeline-1, pipeline-2, pipeline-4,
// pipeline-8.
MemoryExperiment amoebanetd_memory(Edition edition);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_AMOEBANETD_MEMORY_PUBLISHED_H_
