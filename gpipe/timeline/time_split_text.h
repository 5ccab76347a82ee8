// to_text: a split of a step's time as a table for people.
#ifndef GPIPE_TIMELINE_TIME_SPLIT_TEXT_H_
#define GPIPE_TIMELINE_TIME_SPLIT_TEXT_H_

#include <string>

#include "gpipe/timeline/time_split.h"

namespace gpipe {

// The parts in percent of the time of a step, for each worker and on average, and the average in
// milliseconds. Ends with a newline.
//
//   a step: 15 ms on 2 workers, busy 80.0 %
//                compute  recompute  ...  overhead
//   worker 0      80.0 %      0.0 %          0.0 %
//   worker 1      80.0 %      0.0 %          0.0 %
//   mean          80.0 %      0.0 %          0.0 %
//   mean, ms          12          0              0
std::string to_text(const TimeSplit& split);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_TIME_SPLIT_TEXT_H_
