#include "command/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace gpipe::command {

int64_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // It fails on a machine of more cores than the set has room for.
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
    return std::max<int64_t>(CPU_COUNT(&cores), 1);
  }
  return std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

}  // namespace gpipe::command
