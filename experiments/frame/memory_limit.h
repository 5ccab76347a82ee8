// MemoryLimit: makes allocations fail before the machine's memory is used up.
//
// Linux grants memory that it does not have, and kills a process that uses it. A program that must
// report that a network was too large, and go on with the next, needs the allocation to fail
// instead.
#ifndef GPIPE_EXPERIMENTS_FRAME_MEMORY_LIMIT_H_
#define GPIPE_EXPERIMENTS_FRAME_MEMORY_LIMIT_H_

#include <c10/core/Device.h>
#include <sys/resource.h>

#include <cstdint>
#include <vector>

namespace gpipe::experiments {

// The limit of a run on these devices: machine::available_memory() if the CPU is the only one. With
// a GPU there is no limit (0), because the address space that the GPU's driver maps is not memory
// in use.
int64_t limit_of_run(const std::vector<c10::Device>& devices);

// While a MemoryLimit lives, the process can have at most `bytes` more than now: beyond that
// LibTorch and `new` throw. 0: no limit. A limit set from outside (ulimit -d) stays if it is lower.
//
// Requirements: only one MemoryLimit lives at a time.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_ = {};
  bool set_ = false;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_MEMORY_LIMIT_H_
