// PeakMemory: the most memory that this process holds for its data.
#ifndef GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_
#define GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_

#include <cstdint>
#include <string>

namespace gpipe::experiments {

// What /proc/self/status says, in bytes.
struct ResidentMemory {
  int64_t peak = 0;       // VmHWM: of everything
  int64_t anonymous = 0;  // RssAnon: of data
  int64_t other = 0;      // RssFile and RssShmem: programs and libraries, mostly
};

// Throws std::runtime_error if `status` lacks one of the lines.
ResidentMemory parse_resident_memory(const std::string& status);

// Counts from its construction. Code is left out: LibTorch's comes into memory page by page, when a
// kernel first runs, and is the same for everybody. What the process held before is left out, too,
// so that an interpreter does not count.
//
// Linux only. common.py has the same.
class PeakMemory {
 public:
  PeakMemory();
  // The most bytes since the construction, above what was held there.
  int64_t bytes() const;

 private:
  int64_t before_ = 0;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_PEAK_MEMORY_H_
