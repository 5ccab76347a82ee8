// wrong_value: makes the error for a wrong value of a flag.
#ifndef GPIPE_COMMAND_WRONG_VALUE_H_
#define GPIPE_COMMAND_WRONG_VALUE_H_

#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpipe::command {

// Returns what the user wrote, in one line (text/shown.h): "--batch=7". `flag` is without dashes.
std::string flag_text(absl::string_view flag, const absl::AlphaNum& value);

// Returns an exception to throw: "--batch=7: `why`". `why` says what to give instead.
std::invalid_argument wrong_value(absl::string_view flag, const absl::AlphaNum& value,
                                  absl::string_view why);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WRONG_VALUE_H_
