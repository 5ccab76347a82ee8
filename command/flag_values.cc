#include "command/flag_values.h"

#include "absl/strings/str_cat.h"
#include "command/files.h"
#include "command/wrong_value.h"

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

void check_chunks(int64_t chunks, int64_t rows) {
  if (chunks <= rows) return;
  throw wrong_value(
      "chunks", chunks,
      absl::StrCat("a mini-batch of ", rows,
                   " rows cannot be cut into more micro-batches; give at most ", rows));
}

double at_least(const char* flag, double value, double least, double most) {
  if (value >= least && value <= most) return value;  // false for NaN
  throw wrong_value(flag, value, absl::StrCat("give a number from ", least, " to ", most));
}

std::string FileFlags::output(const std::string& flag, const std::string& path) {
  std::string full = add(flag, path, /*written=*/true);
  if (!full.empty()) check_writable_file("--" + flag, full);
  return full;
}

std::string FileFlags::input(const std::string& flag, const std::string& path) {
  return add(flag, path, /*written=*/false);
}

std::string FileFlags::contents(const std::string& flag, const std::string& path) {
  try {
    return read_file(input(flag, path));
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(absl::StrCat(flag_text(flag, path), ": ", error.what()));
  }
}

std::string FileFlags::add(const std::string& flag, const std::string& path, bool written) {
  if (path.rfind("--", 0) == 0) {
    throw wrong_value(flag, path, "its file is missing, and " + path + " was taken for it");
  }
  std::string full = user_path(path);
  if (full.empty()) return full;
  for (const Named& other : files_) {
    if (!(written || other.written) || other.flag == flag || !same_file(other.path, full)) continue;
    throw std::invalid_argument(absl::StrCat(
        flag_text(other.flag, other.path), " and ", flag_text(flag, full),
        " are the same file: give each its own",
        written && other.written ? "" : "; what is read would be lost when the result is written"));
  }
  files_.push_back({flag, full, written});
  return full;
}

}  // namespace gpipe::command
