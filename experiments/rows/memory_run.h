// run_memory: the memory experiments' procedure: two training steps, and what the devices held at
// most.
#ifndef GPIPE_EXPERIMENTS_ROWS_MEMORY_RUN_H_
#define GPIPE_EXPERIMENTS_ROWS_MEMORY_RUN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "balance/memory/memory_plan.h"
#include "experiments/frame/program.h"
#include "experiments/rows/row.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/schedule/routes.h"

namespace gpipe::experiments {

struct MemoryRun : Row {
  balance::MakeOptimizer optimizer;
  bool zero_grad = false;  // as in MemoryPlanOptions; only plans have it
  Observer observer;       // sees the last step's actions; empty: none
};

struct MemoryFigures {
  int64_t parameters = 0;  // the number of parameters
  int64_t parameter_bytes = 0;
  std::vector<int64_t> peaks;    // the bytes that each device held at most, each device once
  std::optional<Routes> routes;  // the routes of a pipeline that was run

  int64_t total() const;  // the sum of the peaks
};

// Works as torchgpipe's benchmarks do (benchmarks/*-memory): the network and a random mini-batch
// are put on the devices, the peaks begin anew, and two steps are trained, each with its optimizer
// step, without clearing the gradients in between.
//
// If all devices are the CPU, an exception is thrown before the machine's memory is used up: the
// kernel would kill the process.
//
// `context` is checked repeatedly. Throws what the run throws.
MemoryFigures run_memory(const MemoryRun& run, const RunContext& context);

// The same figures from a memory plan: nothing is run, each partition has a device of its own with
// `capacity` bytes, and a plain network is one partition. The peaks are what the allocator for CUDA
// would reserve.
struct PlannedMemory {
  MemoryFigures figures;
  int64_t live = 0;  // the peaks of the tensors, summed
  // Whether a device runs out of memory; the peaks are then those without a limit.
  bool out_of_memory = false;
};
PlannedMemory plan_memory(const MemoryRun& run, int64_t capacity, const RunContext& context);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_MEMORY_RUN_H_
