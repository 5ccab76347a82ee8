// link_memory: what links between devices may hold beside what a memory plan says.
#ifndef BALANCE_MEMORY_LINK_MEMORY_H_
#define BALANCE_MEMORY_LINK_MEMORY_H_

#include <cstdint>
#include <vector>

#include "balance/memory/memory_trace.h"

namespace gpipe::balance {

// Bytes on one device, at most (docs/design/link_costs.md).
struct LinkMemory {
  int64_t ahead = 0;    // messages of steps that its process has launched, and it has not done
  int64_t waiting = 0;  // copies that were sent, and to which their receivers have not come
  int64_t buffers = 0;  // NCCL's
};

// [device] What links take of it where each device has a process of its own. `trace` has two steps
// of training, `device_of_stage` is as in MemoryPlan.
std::vector<LinkMemory> link_memory(const MemoryTrace& trace,
                                    const std::vector<int64_t>& device_of_stage);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_LINK_MEMORY_H_
