// Sequential: a schedule for one worker, which takes each micro-batch through all stages and back.
#ifndef GPIPE_SCHEDULE_SEQUENTIAL_H_
#define GPIPE_SCHEDULE_SEQUENTIAL_H_

#include <cstdint>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Worker 0 runs F0.0 F1.0 .. B1.0 B0.0, then the same for micro-batch 1, and so on: gradient
// accumulation. Nothing overlaps, and no stage holds more than one micro-batch.
//
// It is for stages that share one device. On the CPU, with all threads for its one worker
// (GPipeOptions::cpu_threads_per_stage), it can be faster than several workers with a share of the
// cores each: namely where operators gain more than proportionally from several threads, as
// LibTorch's 1x1 convolutions of small micro-batches do. Throws as Schedule::create() does.
//
// Example:
//   pipe->step(inputs, targets, loss, StepOptions().schedule(sequential));
Schedule sequential(int64_t stages, int64_t micro_batches);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SEQUENTIAL_H_
