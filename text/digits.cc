#include "text/digits.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace gpipe::text {

std::string digits(double value) {
  const double size = std::abs(value);
  // The bounds are those of the rounded numbers: 9.996 is shown as 10.0, not as 10.00.
  const int behind = size < 1 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f", behind, value);
}

std::string exact(double value) {
  std::string text;
  for (int digits = 15; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
  }
  return text;
}

}  // namespace gpipe::text
