// memory_size: bytes for people, in the unit in which they are easily read.
#ifndef GPIPE_TEXT_MEMORY_SIZE_H_
#define GPIPE_TEXT_MEMORY_SIZE_H_

#include <cstdint>
#include <string>

namespace gpipe::text {

inline constexpr double kGiB = 1 << 30;

inline double in_gib(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// The unit of all sizes in a table or a sentence.
struct MemoryUnit {
  const char* name;
  int64_t bytes;
};

// GiB, MiB or KiB: the largest of which `largest` bytes are a half or more; KiB for what is less.
MemoryUnit memory_unit(int64_t largest);

// The number alone: at most `decimals` digits behind the point, one less for each digit before it
// but the first, and at least one. A size that would be shown as 0 but is not 0 is "<0.001".
std::string in_unit(int64_t bytes, const MemoryUnit& unit, int decimals = 3);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_MEMORY_SIZE_H_
