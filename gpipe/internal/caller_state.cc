#include "gpipe/internal/caller_state.h"

#include <ATen/autocast_mode.h>

namespace gpipe::internal {

CallerState::Types CallerState::autocast_types() {
  Types types;
  for (size_t k = 0; k < types.size(); ++k) {
    types[k] = at::autocast::get_autocast_dtype(kDevices[k]);
  }
  return types;
}

void CallerState::set_autocast_types(const Types& types) {
  for (size_t k = 0; k < types.size(); ++k) {
    at::autocast::set_autocast_dtype(kDevices[k], types[k]);
  }
}

CallerState::CallerState() : autocast_types_(autocast_types()) {}

CallerStateScope::CallerStateScope(const CallerState& state)
    : guard_(state.state_), former_(CallerState::autocast_types()) {
  CallerState::set_autocast_types(state.autocast_types_);
}

CallerStateScope::~CallerStateScope() { CallerState::set_autocast_types(former_); }

AutocastCacheOff::AutocastCacheOff() : former_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastCacheOff::~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(former_); }

}  // namespace gpipe::internal
