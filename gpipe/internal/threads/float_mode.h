// FloatMode: how a thread's floating-point unit rounds, and whether it flushes denormals.
#ifndef GPIPE_INTERNAL_THREADS_FLOAT_MODE_H_
#define GPIPE_INTERNAL_THREADS_FLOAT_MODE_H_

#include <cstdint>

namespace gpipe::internal {

// What std::fesetround and at::Context::setFlushDenormal set: the thread's own control register,
// without its flags. On other processors than x86-64 and AArch64 the rounding alone. A value type.
class FloatMode {
 public:
  // That of this thread.
  FloatMode();

  // Gives it to this thread. If the thread had another one, its OpenMP team ends: each thread of a
  // team has the mode that the thread had when the team began.
  void apply() const;

  friend bool operator==(const FloatMode& a, const FloatMode& b) {
    return a.rounding_ == b.rounding_ && a.control_ == b.control_;
  }

 private:
  int rounding_;
  uint64_t control_;
};

// Gives this thread a mode, and the former one back at its end.
class FloatModeScope {
 public:
  explicit FloatModeScope(const FloatMode& mode) { mode.apply(); }
  ~FloatModeScope() { former_.apply(); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

 private:
  const FloatMode former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_FLOAT_MODE_H_
