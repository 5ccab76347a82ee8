// check_whole_step: checks that a schedule runs both forwards and backwards. Internal.
#ifndef GPIPE_SCHEDULE_WHOLE_STEP_H_
#define GPIPE_SCHEDULE_WHOLE_STEP_H_

#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Throws std::invalid_argument with a message that begins with `prefix` if the schedule has no
// forwards or no backwards. Schedule::verify() and simulate() also accept such a half of a
// schedule.
void check_whole_step(const Schedule& schedule, const std::string& prefix);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_WHOLE_STEP_H_
