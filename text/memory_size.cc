#include "text/memory_size.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace gpipe::text {

MemoryUnit memory_unit(int64_t largest) {
  for (const MemoryUnit unit : {MemoryUnit{"GiB", 1 << 30}, MemoryUnit{"MiB", 1 << 20}}) {
    if (largest >= unit.bytes / 2) return unit;
  }
  return {"KiB", 1 << 10};
}

std::string in_unit(int64_t bytes, const MemoryUnit& unit, int decimals) {
  const double value = static_cast<double>(bytes) / static_cast<double>(unit.bytes);
  const double least = std::pow(10, -decimals);
  if (bytes > 0 && value < least / 2) return absl::StrFormat("<%.*f", decimals, least);
  // The bounds are those of the rounded numbers: 9.9996 is shown as 10.00, not as 10.000.
  const int before = value < 10 - least / 2 ? 0 : value < 100 - 5 * least ? 1 : 2;
  return absl::StrFormat("%.*f", std::max(1, decimals - before), value);
}

}  // namespace gpipe::text
