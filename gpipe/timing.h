// timing: how times are measured and summed up in profiles, diagnoses and benchmarks.
#ifndef GPIPE_TIMING_H_
#define GPIPE_TIMING_H_

#include <functional>
#include <vector>

namespace gpipe {

// The time in seconds of a clock that never goes back, since some point in the past.
double steady_seconds();

// How long a call of `work` takes, in seconds.
double seconds_of(const std::function<void()>& work);

// The middle one of the values, or the mean of the two middle ones if their number is even. Throws
// std::invalid_argument if there are no values, because a median of nothing would pass for one that
// was measured.
double median(std::vector<double> values);

}  // namespace gpipe

#endif  // GPIPE_TIMING_H_
