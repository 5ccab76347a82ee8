// digits, exact: a number for people, with at least three significant digits, or with all.
#ifndef GPIPE_TEXT_DIGITS_H_
#define GPIPE_TEXT_DIGITS_H_

#include <string>

namespace gpipe::text {

// "0.123", "1.23", "12.3", "123", "1234": all digits before the point, and three behind it where
// there is none before.
std::string digits(double value);

// "0.1", "1e+300", "2": as few digits as say which number it is.
std::string exact(double value);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_DIGITS_H_
