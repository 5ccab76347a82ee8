// Statistics: the running statistics of norms, for a mini-batch whose rows are in several replicas.
#ifndef GPIPE_INTERNAL_REPLICAS_STATISTICS_H_
#define GPIPE_INTERNAL_REPLICAS_STATISTICS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Makes the deferred updates of all replicas, in the order of the micro-batches. The first replica
// gets the updates, makes them, and gives the changed buffers to the others. The logs are empty
// afterwards.
//
// `stages`: [stage], the logs of this replica. `buffers`: the buffers of this process's layers, in
// the same order in all replicas. Called within in_call(), by all processes.
void commit_over_replicas(const World& world, std::vector<StatisticsLog>& stages,
                          const std::vector<at::Tensor>& buffers);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_STATISTICS_H_
