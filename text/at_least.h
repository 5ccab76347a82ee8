// at_least: checks a number that a user has given and that must not be too small.
#ifndef TEXT_AT_LEAST_H_
#define TEXT_AT_LEAST_H_

#include <cstdint>
#include <string>

namespace gpipe::text {

// Returns `value`. Throws std::invalid_argument if it is less than `least`, or not finite:
// "`given`: give a finite number of at least 0". `given` is what the user wrote: "--latency_us=-1".
double at_least(double least, double value, const std::string& given);
// The same check for a whole number: "`given`: give a whole number of at least 1".
int64_t at_least(int64_t least, int64_t value, const std::string& given);

}  // namespace gpipe::text

#endif  // TEXT_AT_LEAST_H_
