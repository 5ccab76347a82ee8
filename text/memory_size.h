// memory_size: bytes as text for people, in a unit in which they are easy to read.
#ifndef GPIPE_TEXT_MEMORY_SIZE_H_
#define GPIPE_TEXT_MEMORY_SIZE_H_

#include <cstdint>
#include <string>

namespace gpipe::text {

inline constexpr double kGiB = 1 << 30;

inline double in_gib(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

// The common unit of all sizes in a table or a sentence.
struct MemoryUnit {
  const char* name;
  int64_t bytes;
};

// The largest of GiB, MiB and KiB of which `largest` bytes are at least a half; KiB if they are
// less.
MemoryUnit memory_unit(int64_t largest);

// The number without its unit. It has `decimals` digits behind the point, one less for each further
// digit before the point, and at least one: "1.234", "12.34". A size that would be shown as 0 but
// is not 0 is "<0.001".
std::string in_unit(int64_t bytes, const MemoryUnit& unit, int decimals = 3);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_MEMORY_SIZE_H_
