#include "gpipe/internal/threads/float_mode.h"

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "gpipe/internal/threads/openmp_team.h"

namespace gpipe::internal {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kFlags = 0x3f;  // the bits of MXCSR that say which exceptions occurred
uint64_t control() { return _mm_getcsr() & ~kFlags; }
void set_control(uint64_t control) {
  _mm_setcsr(static_cast<uint32_t>(control) | (_mm_getcsr() & kFlags));
}
#elif defined(__aarch64__)
uint64_t control() {
  uint64_t value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_control(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
uint64_t control() { return 0; }
void set_control(uint64_t /*control*/) {}
#endif

}  // namespace

FloatMode::FloatMode() : rounding_(std::fegetround()), control_(control()) {}

void FloatMode::apply() const {
  if (*this == FloatMode()) return;
  std::fesetround(rounding_);
  set_control(control_);
  release_openmp_team();
}

}  // namespace gpipe::internal
