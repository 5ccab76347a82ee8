#include "gpipe/testing/ulp.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace gpipe::testing {
namespace {

template <typename T>
std::optional<uint64_t> distance(const char* a, const char* b) {
  T x;
  T y;
  std::memcpy(&x, a, sizeof(T));
  std::memcpy(&y, b, sizeof(T));
  if (x != x || y != y) return std::nullopt;
  uint64_t a_bits = 0;  // x86-64 is little-endian
  uint64_t b_bits = 0;
  std::memcpy(&a_bits, a, sizeof(T));
  std::memcpy(&b_bits, b, sizeof(T));
  const uint64_t sign = uint64_t{1} << (8 * sizeof(T) - 1);
  const uint64_t a_size = a_bits & ~sign;
  const uint64_t b_size = b_bits & ~sign;
  if ((a_bits & sign) != (b_bits & sign)) return a_size + b_size;
  return a_size > b_size ? a_size - b_size : b_size - a_size;
}

// The distance of one part of a number. `type` is not complex.
std::optional<uint64_t> part_distance(c10::ScalarType type, const char* a, const char* b) {
  switch (type) {
    case c10::kFloat:
      return distance<float>(a, b);
    case c10::kDouble:
      return distance<double>(a, b);
    case c10::kHalf:
      return distance<c10::Half>(a, b);
    case c10::kBFloat16:
      return distance<c10::BFloat16>(a, b);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<uint64_t> ulp_distance(c10::ScalarType type, const char* a, const char* b) {
  const bool complex = c10::isComplexType(type);
  const size_t size = c10::elementSize(type) / (complex ? 2 : 1);
  const c10::ScalarType part = complex ? c10::toRealValueType(type) : type;
  uint64_t result = 0;
  for (size_t offset = 0; offset < c10::elementSize(type); offset += size) {
    if (std::memcmp(a + offset, b + offset, size) == 0) continue;
    const std::optional<uint64_t> ulp = part_distance(part, a + offset, b + offset);
    if (!ulp) return std::nullopt;
    result = std::max(result, *ulp);
  }
  return result;
}

}  // namespace gpipe::testing
