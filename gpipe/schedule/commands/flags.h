// at_least: flags of this package's programs, and what is wrong with them, by their names.
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

// "--workers=0"
template <typename Value>
std::string given(const absl::Flag<Value>& flag) {
  const absl::CommandLineFlag& known = absl::GetFlagReflectionHandle(flag);
  return "--" + std::string(known.Name()) + "=" + text::shown(known.CurrentValue());
}

// Its value. Throws std::invalid_argument that names the flag for one that is less, or not finite.
template <typename Value>
Value at_least(Value least, const absl::Flag<Value>& flag) {
  return text::at_least(least, absl::GetFlag(flag), given(flag));
}

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_COMMANDS_FLAGS_H_
