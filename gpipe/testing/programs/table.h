// Table: the schedule of a program with Entry::kStepTable.
#ifndef GPIPE_TESTING_PROGRAMS_TABLE_H_
#define GPIPE_TESTING_PROGRAMS_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "gpipe/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::testing::programs {

// A random schedule of a seed, or the schedule of a named generator. The seed chooses the generator
// among those that fit the stages and are fast. All schedules are ascending (ScheduleFacts).
struct Table {
  uint64_t seed = 0;
  bool generator = false;
  int64_t stages = 1;

  Schedule schedule(int64_t micro_batches) const;
  // The placement of a generator's schedule. No value for a random one, which may leave workers
  // without actions.
  std::optional<Placement> placement() const;
  // The name of the table, like "zb-v", "interleaved, 3 stages per worker", or "a random schedule
  // of the seed".
  std::string name() const;
};

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_TABLE_H_
