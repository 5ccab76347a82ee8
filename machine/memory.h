// available_memory: how much memory this process can still use.
#ifndef GPIPE_MACHINE_MEMORY_H_
#define GPIPE_MACHINE_MEMORY_H_

#include <cstdint>

namespace gpipe::machine {

// What this process can still use, in bytes: what the machine has available, or the rest of what a
// container (cgroup) may use if that is less. 0: not known.
int64_t available_memory();

}  // namespace gpipe::machine

#endif  // GPIPE_MACHINE_MEMORY_H_
