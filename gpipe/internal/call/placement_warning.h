// PlacementWarning: a schedule with fewer workers than stages, and no GPipeOptions::placement.
#ifndef GPIPE_INTERNAL_CALL_PLACEMENT_WARNING_H_
#define GPIPE_INTERNAL_CALL_PLACEMENT_WARNING_H_

#include <cstdint>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Warns once in a process, and names the placement to give. On accelerators a placement does not
// change how many threads there are, so only schedules with one worker are warned about.
void warn_without_placement(const Schedule& schedule, int64_t stages, bool on_cpu);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_PLACEMENT_WARNING_H_
