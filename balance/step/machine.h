// Machine: what a step's time depends on beside the model, the cut and the schedule.
#ifndef BALANCE_STEP_MACHINE_H_
#define BALANCE_STEP_MACHINE_H_

#include <cstdint>

namespace gpipe::balance {

// The machine that runs a pipeline.
struct Machine {
  int64_t cores = 0;  // how many workers can compute at the same time; 0: all
  // Factor by which an action is slower while others run and share caches and memory with it. At
  // least 1.
  double contention = 1;
  // The link between any two workers. A bandwidth of 0: only the latency counts.
  double bandwidth = 0;  // bytes per second
  double latency = 0;    // seconds per transfer
  double overhead = 0;   // seconds of every action in addition to its layers
  // Bytes per second between a device and the host, in each direction, for offloads. 0: their
  // copies take no time.
  double host_bandwidth = 0;

  // Seconds of a transfer between workers.
  double seconds(double bytes) const { return latency + (bandwidth > 0 ? bytes / bandwidth : 0.0); }
};

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_MACHINE_H_
