// first_difference: the first difference between two schedules, in words.
#ifndef GPIPE_SCHEDULE_FIRST_DIFFERENCE_H_
#define GPIPE_SCHEDULE_FIRST_DIFFERENCE_H_

#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// The first difference, in the order of to_text(), as a message; empty if the schedules are equal.
// `on_a` and `on_b` say where each schedule is, such as "on rank 0".
//
//   "action 2 of worker 1 (both counted from 0) is F1.1, the forward of stage 1 for micro-batch 1,
//    on rank 0, and B1.0, the backward of stage 1 for micro-batch 0, on rank 1"
std::string first_difference(const Schedule& a, const std::string& on_a, const Schedule& b,
                             const std::string& on_b);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_FIRST_DIFFERENCE_H_
