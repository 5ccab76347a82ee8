// AutocastScope: switches autocast on for this thread, as a user's training loop does.
#ifndef GPIPE_TESTING_AUTOCAST_SCOPE_H_
#define GPIPE_TESTING_AUTOCAST_SCOPE_H_

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace gpipe::testing {

// The end of the outermost scope drops the casts of weights that were kept.
class AutocastScope {
 public:
  // `cache`: whether casts of weights are kept.
  AutocastScope(c10::DeviceType device, at::ScalarType type, bool cache = true)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        type_(at::autocast::get_autocast_dtype(device)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    set(true, type, cache);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set(enabled_, type_, cache_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(bool enabled, at::ScalarType type, bool cache) const {
    at::autocast::set_autocast_enabled(device_, enabled);
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_cache_enabled(cache);
  }

  const c10::DeviceType device_;
  const bool enabled_;
  const at::ScalarType type_;
  const bool cache_;
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_AUTOCAST_SCOPE_H_
