// in_range, at_least, FileFlags: what the values of flags may be.
#ifndef GPIPE_COMMAND_FLAG_VALUES_H_
#define GPIPE_COMMAND_FLAG_VALUES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::command {

inline constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

// The value of --`flag`. Throws std::invalid_argument, with the range, if it is not in it.
int64_t in_range(const char* flag, int64_t value, int64_t least, int64_t most = kNoMost);
// The same of a flag that may be left out: then there is no value. (No number stands for that: 0
// would be taken silently.)
std::optional<int64_t> in_range(const char* flag, std::optional<int64_t> value, int64_t least,
                                int64_t most = kNoMost);

// Beyond any device, duration or factor, and far from what overflows.
inline constexpr double kMostReal = 1e9;

// The value of --`flag`. Throws std::invalid_argument, with the range, if it is not in it, or no
// number.
double at_least(const char* flag, double value, double least, double most = kMostReal);

// The files that a command's flags name. No two may be the same, unless both are only read: a
// result would take the place of another one, or of what it was made from.
//
// Each throws std::invalid_argument, with the flags and the path, where they are the same, and
// where the next flag was taken for the name of the file. An empty path is that of no file.
class FileFlags {
 public:
  // The path of a file that --`flag` wants to be written, as user_path() has it. Throws as
  // check_writable_file() does.
  std::string output(const std::string& flag, const std::string& path);
  // The path of a file that --`flag` wants to be read, as user_path() has it.
  std::string input(const std::string& flag, const std::string& path);
  // What is in it. Throws std::invalid_argument for what cannot be read.
  std::string contents(const std::string& flag, const std::string& path);

 private:
  struct Named {
    std::string flag, path;
    bool written;
  };
  std::string add(const std::string& flag, const std::string& path, bool written);

  std::vector<Named> files_;
};

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FLAG_VALUES_H_
