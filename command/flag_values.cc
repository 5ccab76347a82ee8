#include "command/flag_values.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "text/at_least.h"

namespace gpipe::command {

int64_t in_range(const char* flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return value;
  throw std::invalid_argument("--" + std::string(flag) + "=" + std::to_string(value) +
                              ": give a number from " + std::to_string(least) +
                              (most == kNoMost ? " on" : " to " + std::to_string(most)));
}

std::optional<int64_t> in_range(const char* flag, std::optional<int64_t> value, int64_t least,
                                int64_t most) {
  if (value) in_range(flag, *value, least, most);
  return value;
}

double at_least(const char* flag, double value, double least) {
  return text::at_least(least, value, absl::StrCat("--", flag, "=", value));
}

std::string output_file(const std::string& flag, const std::string& path) {
  if (path.rfind("--", 0) == 0) {
    throw std::invalid_argument("--" + flag + "=" + path + ": its file is missing, and " + path +
                                " was taken for it");
  }
  std::string full = user_path(path);
  if (!full.empty()) check_writable_file("--" + flag, full);
  return full;
}

}  // namespace gpipe::command
