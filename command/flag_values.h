// in_range, at_least, output_file: what the values of flags may be.
#ifndef GPIPE_COMMAND_FLAG_VALUES_H_
#define GPIPE_COMMAND_FLAG_VALUES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace gpipe::command {

inline constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

// The value of --`flag`. Throws std::invalid_argument, with the range, if it is not in it.
int64_t in_range(const char* flag, int64_t value, int64_t least, int64_t most = kNoMost);
// The same of a flag that may be left out: then there is no value. (No number stands for that: 0
// would be taken silently.)
std::optional<int64_t> in_range(const char* flag, std::optional<int64_t> value, int64_t least,
                                int64_t most = kNoMost);

// The value of --`flag`. Throws std::invalid_argument if it is less than `least`, or not finite.
double at_least(const char* flag, double value, double least);

// The path of a file that --`flag` wants to be written, as user_path() has it; empty if none is
// wanted. Throws as check_writable_file() does.
std::string output_file(const std::string& flag, const std::string& path);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FLAG_VALUES_H_
