// share_cores: which cores each of several processes gets.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_

#include <cstdint>
#include <vector>

namespace gpipe::distributed {

// Gives each process a share of neighboring cores. Shares differ by at most one core, and each core
// is in one share. If there are more processes than cores, each process gets one core, and
// neighboring processes share it.
//
// Requirements: at least one core and one process.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int64_t processes);

// Binds the calling thread to `cores`. False, with errno, if that fails. It allocates memory, so
// between fork and exec it may be called only if the process has one thread.
bool bind_to_cores(const std::vector<int>& cores);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_CORE_SHARES_H_
