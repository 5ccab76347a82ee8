// PeakMemory: the most memory that this process holds for its data, on the CPU or on a GPU.
#ifndef GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_
#define GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace gpipe::experiments {

// What /proc/self/status says, in bytes.
struct ResidentMemory {
  int64_t peak = 0;       // VmHWM: the peak of everything
  int64_t anonymous = 0;  // RssAnon: data
  int64_t other = 0;      // RssFile and RssShmem: programs and libraries, mostly
};

// Throws std::runtime_error if `status` lacks one of the lines.
ResidentMemory parse_resident_memory(const std::string& status);

// A PeakMemory counts from its construction. Code is left out: LibTorch's code comes into memory
// page by page, when a kernel first runs, and is the same for every program. What the process held
// before is left out, too, so that an interpreter does not count.
//
// On a CUDA device a PeakMemory counts what LibTorch's caching allocator has handed out
// (torch calls that max_memory_allocated). What the allocator has reserved does not count, nor does
// the device's context.
//
// Linux only. sides/common.py counts in the same way.
class PeakMemory {
 public:
  // Throws std::invalid_argument for a device that is neither the CPU nor a CUDA device.
  explicit PeakMemory(c10::Device device = c10::kCPU);
  // The most bytes since the construction, above what was held then.
  int64_t bytes() const;

 private:
  c10::Device device_;
  int64_t before_ = 0;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_
