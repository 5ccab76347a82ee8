// digits, exact: a number as text for people, with at least three significant digits, or with all.
#ifndef GPIPE_TEXT_DIGITS_H_
#define GPIPE_TEXT_DIGITS_H_

#include <string>

namespace gpipe::text {

// A text like "0.123", "1.23", "12.3", "123", "1234": all digits before the point. If there is no
// digit before it except 0, there are three behind it.
std::string digits(double value);

// A text like "0.1", "1e+300", "2", with as few digits as suffice to tell the number from all
// others.
std::string exact(double value);

}  // namespace gpipe::text

#endif  // GPIPE_TEXT_DIGITS_H_
