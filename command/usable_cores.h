// usable_cores: how many cores this process may use.
#ifndef GPIPE_COMMAND_USABLE_CORES_H_
#define GPIPE_COMMAND_USABLE_CORES_H_

#include <cstdint>

namespace gpipe::command {

// Those of the calling thread's affinity (taskset, a batch system's share), at least one. Not those
// of the machine: std::thread::hardware_concurrency() counts the others, too.
int64_t usable_cores();

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_USABLE_CORES_H_
