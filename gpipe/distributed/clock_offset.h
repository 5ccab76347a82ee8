// clock_offset: how the clock of this process is made that of rank 0.
#ifndef GPIPE_DISTRIBUTED_CLOCK_OFFSET_H_
#define GPIPE_DISTRIBUTED_CLOCK_OFFSET_H_

#include <cstdint>
#include <functional>
#include <string>

#include "gpipe/internal/processes/processes.h"

namespace gpipe::distributed {

struct Clock {
  // Processes with the same text have the same clock.
  std::string name;
  std::function<int64_t()> now;  // nanoseconds since anything
};

// std::chrono::steady_clock, which all processes of a machine share until it is started again.
Clock steady_clock_of_machine();

// What added to the own clock gives that of rank 0, in nanoseconds. 0 where it is the same one;
// otherwise off by at most half of the shortest of some messages to and fro. It holds for now:
// clocks of two machines drift by some microseconds a second.
//
// Called by all processes, within in_call().
int64_t clock_offset(internal::Processes& processes, const Clock& clock);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CLOCK_OFFSET_H_
