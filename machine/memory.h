// available_memory: how much memory this process can still use; and lines such as "VmData: 12 kB".
#ifndef GPIPE_MACHINE_MEMORY_H_
#define GPIPE_MACHINE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace gpipe::machine {

// What this process can still use, in bytes: what the machine has available, or the rest of what a
// container (cgroup) may use if that is less. 0: not known.
int64_t available_memory();

// The bytes that the line `name` of a file says, such as "VmData:" of /proc/self/status for
// "VmData: 12345 kB". None if no line of this name begins with a number.
std::optional<int64_t> bytes_of_line(const std::string& file, const std::string& name);

}  // namespace gpipe::machine

#endif  // GPIPE_MACHINE_MEMORY_H_
