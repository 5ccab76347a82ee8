// FloatMode: how a thread's floating-point unit rounds, and whether it flushes denormals.
#ifndef GPIPE_INTERNAL_THREADS_FLOAT_MODE_H_
#define GPIPE_INTERNAL_THREADS_FLOAT_MODE_H_

#include <cstdint>

namespace gpipe::internal {

// The mode that std::fesetround and at::Context::setFlushDenormal set: the thread's control
// register, without its flags. On processors other than x86-64 and AArch64, only the rounding
// belongs to it. A value type.
class FloatMode {
 public:
  // The mode of this thread.
  FloatMode();

  // Gives this thread the mode. If the thread had another mode, its OpenMP team ends, because the
  // threads of a team keep the mode that this thread had when the team began.
  void apply() const;

  friend bool operator==(const FloatMode& a, const FloatMode& b) {
    return a.rounding_ == b.rounding_ && a.control_ == b.control_;
  }

 private:
  int rounding_;
  uint64_t control_;
};

// Gives this thread a mode, and restores the former one on exit.
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
