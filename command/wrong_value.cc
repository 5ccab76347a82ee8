#include "command/wrong_value.h"

#include "text/shown.h"

namespace gpipe::command {

std::string flag_text(absl::string_view flag, const absl::AlphaNum& value) {
  return absl::StrCat("--", flag, "=", text::shown(std::string(value.Piece())));
}

std::invalid_argument wrong_value(absl::string_view flag, const absl::AlphaNum& value,
                                  absl::string_view why) {
  return std::invalid_argument(absl::StrCat(flag_text(flag, value), ": ", why));
}

}  // namespace gpipe::command
