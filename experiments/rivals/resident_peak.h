// ResidentPeak: the most memory of the host that this process holds for its data.
#ifndef GPIPE_EXPERIMENTS_RIVALS_RESIDENT_PEAK_H_
#define GPIPE_EXPERIMENTS_RIVALS_RESIDENT_PEAK_H_

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

// A ResidentPeak counts from its construction. Code is left out: LibTorch's code comes into memory
// page by page, when a kernel first runs, and is the same for every program. What the process held
// before is left out, too, so that an interpreter does not count.
//
// Linux only. sides/common.py counts in the same way.
class ResidentPeak {
 public:
  ResidentPeak();
  // The most bytes since the construction, above what was held then.
  int64_t bytes() const;

 private:
  int64_t before_ = 0;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_RIVALS_RESIDENT_PEAK_H_
