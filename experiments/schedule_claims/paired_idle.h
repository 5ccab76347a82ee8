// paired_idle: how long workers idle under DualPipeV (DualPipe cut in half) if a forward and a
// backward that stand side by side are one unit. The authors of DualPipe run the two so, to overlap
// the transfers of one with the computation of the other.
#ifndef GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_PAIRED_IDLE_H_
#define GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_PAIRED_IDLE_H_

#include <cstdint>

#include "gpipe/schedule/simulate.h"

namespace gpipe::experiments {

// A worker's time from its first start to its last end, and how much of it was work.
struct WorkerSpan {
  double span = 0.0;
  double work = 0.0;

  double idle() const { return span - work; }
};

// The worker that idles longest under dualpipe_v(workers, micro_batches), with these costs of a
// stage (there are two on a worker) and transfers that take no time. A pair of its main steps takes
// `pair`: it starts when both of its parts can, and both have their results when it ends. Other
// actions take the same time as in simulate().
//
// Throws std::invalid_argument for fewer than 2 x workers micro-batches, for which DualPipe has no
// rules.
WorkerSpan paired_idle(int64_t workers, int64_t micro_batches, const StageCost& cost, double pair);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_SCHEDULE_CLAIMS_PAIRED_IDLE_H_
