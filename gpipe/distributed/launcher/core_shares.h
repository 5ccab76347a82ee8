// share_cores: which cores each of several processes gets.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_

#include <cstdint>
#include <vector>

namespace gpipe::distributed {

// Shares of neighbors: equal but for one core, each core in one share. If there are more processes
// than cores, each process gets one, which neighbors share.
//
// Requirements: at least one core and one process.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int64_t processes);

// Binds the calling thread to them: false, with errno, if that fails. Allocates; between fork and
// exec only where the process has one thread.
bool bind_to_cores(const std::vector<int>& cores);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_
