// in_range, check_chunks, at_least, FileFlags: check the values of flags.
#ifndef GPIPE_COMMAND_FLAG_VALUES_H_
#define GPIPE_COMMAND_FLAG_VALUES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::command {

inline constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

// Returns the value of --`flag`. Throws std::invalid_argument with the range if the value is
// outside of it.
int64_t in_range(const char* flag, int64_t value, int64_t least, int64_t most = kNoMost);
// The same for a flag that may be left out and then has no value. (0 cannot stand for "left out",
// because a user's 0 would then pass silently.)
std::optional<int64_t> in_range(const char* flag, std::optional<int64_t> value, int64_t least,
                                int64_t most = kNoMost);

// Throws std::invalid_argument if a mini-batch of `rows` has fewer rows than --chunks.
void check_chunks(int64_t chunks, int64_t rows);

// The largest value of a flag by default: larger than any device's size, duration or factor, and
// far from overflow.
inline constexpr double kMostReal = 1e9;

// Returns the value of --`flag`. Throws std::invalid_argument with the range if the value is
// outside of it or NaN.
double at_least(const char* flag, double value, double least, double most = kMostReal);

// The files that a command's flags name. No two may be the same, unless both are only read:
// otherwise a result would replace another result or an input.
//
// Each function throws std::invalid_argument with the flags and the path if two files are the same,
// and if the next flag was taken for a file's name. An empty path means no file.
class FileFlags {
 public:
  // Returns the path of a file that --`flag` names for writing, resolved by user_path(). Throws as
  // check_writable_file() does.
  std::string output(const std::string& flag, const std::string& path);
  // Returns the path of a file that --`flag` names for reading, resolved by user_path().
  std::string input(const std::string& flag, const std::string& path);
  // Returns the contents of the file that input() would name. Throws std::invalid_argument if it
  // cannot be read.
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
