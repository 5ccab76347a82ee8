// share_cores: adapts a simulated run to fewer cores than workers.
#ifndef BALANCE_STEP_SHARED_CORES_H_
#define BALANCE_STEP_SHARED_CORES_H_

#include <cstdint>
#include <vector>

#include "gpipe/schedule/simulate.h"

namespace gpipe::balance {

struct SharedRun {
  double makespan = 0;       // in the unit of the simulation
  std::vector<double> busy;  // [worker] the time spent in actions that compute
};

// Returns `run` on a machine where only `cores` workers (0: all) can run at the same time. The
// cores are shared fairly, and an action beside others takes `contention` times as long, as they
// share caches and memory.
//
// While k workers are in an action, all of them slow down by the same factor: k / cores, at least
// 1, times `contention` if k > 1. So the order of events stays as simulated, and the run's time is
// stretched piece by piece. This is exact except for transfers, which are stretched, too.
//
// Requirements: cores >= 0, contention > 0.
SharedRun share_cores(const Simulation& run, int64_t cores, double contention);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_SHARED_CORES_H_
