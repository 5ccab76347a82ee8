// check_whole_step: checks that a schedule runs both forwards and backwards. Internal.
#ifndef GPIPE_SCHEDULE_WHOLE_STEP_H_
#define GPIPE_SCHEDULE_WHOLE_STEP_H_

#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// "forwards" or "backwards" if the schedule has none of these, otherwise null. Schedule::verify()
// and simulate() also accept such a half of a schedule.
const char* missing_half(const Schedule& schedule);

// Throws std::invalid_argument with a message that begins with `prefix` if a half is missing.
void check_whole_step(const Schedule& schedule, const std::string& prefix);

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_WHOLE_STEP_H_
