// speed_variants: the published runs of the AmoebaNet-D speed experiment and their results.
#ifndef GPIPE_EXPERIMENTS_AMOEBANETD_SPEED_PUBLISHED_H_
#define GPIPE_EXPERIMENTS_AMOEBANETD_SPEED_PUBLISHED_H_

#include <vector>

#include "experiments/rows/speed_variant.h"

namespace gpipe::experiments {

// The runs: n2m1, n2m4, ... n8m32, with n partitions and m micro-batches, of AmoebaNet-D (18, 256)
// with 24 layers. There is no run of the plain network.
const std::vector<SpeedVariant>& speed_variants();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_AMOEBANETD_SPEED_PUBLISHED_H_
