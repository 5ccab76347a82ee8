// wrong_value: what is wrong with the value of a flag.
#ifndef GPIPE_COMMAND_WRONG_VALUE_H_
#define GPIPE_COMMAND_WRONG_VALUE_H_

#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpipe::command {

// What the user wrote, as one line shows it (text/shown.h): "--batch=7". `flag` is without dashes.
std::string flag_text(absl::string_view flag, const absl::AlphaNum& value);

// To be thrown: "--batch=7: `why`". The reason says what to give instead.
std::invalid_argument wrong_value(absl::string_view flag, const absl::AlphaNum& value,
                                  absl::string_view why);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_WRONG_VALUE_H_
