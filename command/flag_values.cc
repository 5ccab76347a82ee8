#include "command/flag_values.h"

#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "command/wrong_value.h"
#include "text/at_least.h"

namespace gpipe::command {

int64_t in_range(const char* flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return value;
  throw wrong_value(flag, value,
                    absl::StrCat("give a number from ", least,
                                 most == kNoMost ? " on" : absl::StrCat(" to ", most)));
}

std::optional<int64_t> in_range(const char* flag, std::optional<int64_t> value, int64_t least,
                                int64_t most) {
  if (value) in_range(flag, *value, least, most);
  return value;
}

double at_least(const char* flag, double value, double least) {
  return text::at_least(least, value, flag_text(flag, value));
}

std::string output_file(const std::string& flag, const std::string& path) {
  if (path.rfind("--", 0) == 0) {
    throw wrong_value(flag, path, "its file is missing, and " + path + " was taken for it");
  }
  std::string full = user_path(path);
  if (!full.empty()) check_writable_file("--" + flag, full);
  return full;
}

}  // namespace gpipe::command
