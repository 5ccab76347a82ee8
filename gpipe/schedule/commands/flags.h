// at_least: checks the flags of this package's programs; messages name the flag.
//
// Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_COMMANDS_FLAGS_H_
#define GPIPE_SCHEDULE_COMMANDS_FLAGS_H_

#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "text/at_least.h"
#include "text/shown.h"

namespace gpipe::internal {

// The flag as the user gave it: "--workers=0".
template <typename Value>
std::string given(const absl::Flag<Value>& flag) {
  const absl::CommandLineFlag& known = absl::GetFlagReflectionHandle(flag);
  return "--" + std::string(known.Name()) + "=" + text::shown(known.CurrentValue());
}

// The flag's value. Throws std::invalid_argument that names the flag if the value is below `least`
// or not finite.
template <typename Value>
Value at_least(Value least, const absl::Flag<Value>& flag) {
  return text::at_least(least, absl::GetFlag(flag), given(flag));
}

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_COMMANDS_FLAGS_H_
