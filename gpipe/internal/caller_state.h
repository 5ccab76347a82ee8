// CallerState: the thread-local state of a calling thread that its layers must find on the workers.
#ifndef GPIPE_INTERNAL_CALLER_STATE_H_
#define GPIPE_INTERNAL_CALLER_STATE_H_

#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>

namespace gpipe::internal {

// Grad mode, inference mode, autocast with its dtypes, record-function callbacks, and whatever else
// at::ThreadLocalState carries, as they are on the thread that makes the object. A value type.
class CallerState {
 public:
  CallerState();

 private:
  friend class CallerStateScope;

  static constexpr std::array<c10::DeviceType, 3> kDevices = {
      c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};
  using Types = std::array<c10::ScalarType, kDevices.size()>;

  // The dtypes that autocast casts to, which at::ThreadLocalState omits.
  static Types autocast_types();
  static void set_autocast_types(const Types& types);

  at::ThreadLocalState state_;
  Types autocast_types_;
};

// Applies a state to this thread, and restores the previous one on exit.
class CallerStateScope {
 public:
  explicit CallerStateScope(const CallerState& state);
  ~CallerStateScope();
  CallerStateScope(const CallerStateScope&) = delete;
  CallerStateScope& operator=(const CallerStateScope&) = delete;

 private:
  at::ThreadLocalStateGuard guard_;
  CallerState::Types former_;
};

// While it lives, autocast casts every weight anew on this thread. Autocast's cache belongs to the
// process, and whoever leaves autocast on the calling thread empties it. With the cache, stages
// that run at the same time would take casts from each other's graphs, and a recompute outside the
// caller's autocast would leave casts of the current weights for a later forward.
class AutocastCacheOff {
 public:
  AutocastCacheOff();
  ~AutocastCacheOff();
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALLER_STATE_H_
