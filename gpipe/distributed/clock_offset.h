// clock_offset: converts times of this process's clock to times of rank 0's clock.
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
  std::function<int64_t()> now;  // nanoseconds since an arbitrary moment
};

// std::chrono::steady_clock, which all processes of a machine share until the machine reboots.
Clock steady_clock_of_machine();

// The nanoseconds to add to this process's clock to get rank 0's clock. 0 if both have the same
// clock; otherwise wrong by at most half of the shortest of several round trips. The result holds
// only now: the clocks of two machines drift apart by some microseconds a second.
//
// All processes call it, within in_call().
int64_t clock_offset(internal::Processes& processes, const Clock& clock);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CLOCK_OFFSET_H_
