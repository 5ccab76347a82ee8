#include "gpipe/internal/threads/caller_state.h"

#include <ATen/autocast_mode.h>

namespace gpipe::internal {

AutocastCacheOff::AutocastCacheOff() : former_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastCacheOff::~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(former_); }

}  // namespace gpipe::internal
