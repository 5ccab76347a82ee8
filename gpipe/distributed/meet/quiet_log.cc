#include "gpipe/distributed/meet/quiet_log.h"

#include <c10/util/Logging.h>

#include <cstdint>
#include <mutex>

namespace gpipe::distributed {
namespace {

constexpr int kWarning = 1;  // LibTorch's default
constexpr int kError = 2;

struct State {
  std::mutex mutex;
  int64_t objects = 0;
  bool is_raised = false;  // the first object has raised the level
};
// The state is never destroyed, because a session in a static object of the user may end after
// other statics.
State& state() {
  static auto* const state = new State;
  return *state;
}

}  // namespace

QuietLog::QuietLog() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (state().objects++ > 0 || FLAGS_caffe2_log_level != kWarning) return;
  FLAGS_caffe2_log_level = kError;
  state().is_raised = true;
}

QuietLog::~QuietLog() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (--state().objects > 0 || !state().is_raised) return;
  // If the level is no longer kError, the user has changed it meanwhile, and the user's level
  // stays.
  if (FLAGS_caffe2_log_level == kError) FLAGS_caffe2_log_level = kWarning;
  state().is_raised = false;
}

}  // namespace gpipe::distributed
