// random_schedule: makes a random schedule that can run, for tests that all code accepts it.
#ifndef GPIPE_SCHEDULE_RANDOM_SCHEDULE_H_
#define GPIPE_SCHEDULE_RANDOM_SCHEDULE_H_

#include <cstdint>
#include <random>

#include "gpipe/schedule/schedule.h"

namespace gpipe::testing {

// The order in which a stage takes the micro-batches.
enum class MicroBatchOrder {
  kAny,
  // Forwards ascend, and so do the actions that accumulate gradients (B or W). Input gradients
  // still come in any order.
  kAscending,
};

// Makes a schedule of these stages and micro-batches on 1 to `stages` workers. Each stage is on any
// of the workers, and each cell's backward is whole or split. It verifies with buffered sends.
Schedule random_schedule(int64_t stages, int64_t micro_batches, MicroBatchOrder order,
                         std::mt19937_64& random);

}  // namespace gpipe::testing

#endif  // GPIPE_SCHEDULE_RANDOM_SCHEDULE_H_
