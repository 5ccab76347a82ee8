// default_schedule: the schedule that a pipeline runs if the caller names none, on any placement.
#ifndef GPIPE_SCHEDULE_DEFAULT_SCHEDULE_H_
#define GPIPE_SCHEDULE_DEFAULT_SCHEDULE_H_

#include <cstdint>

#include "gpipe/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The plain schedule of the placement's shape, with whole backwards wherever such a schedule
// exists: Schedule::one_f_one_b with a stage on each worker, sequential() on one worker,
// interleaved() in a loop, dualpipe_v() in a V, fill_drain_on() otherwise. Ascending
// (ScheduleFacts). Throws std::invalid_argument for counts below 1.
Schedule default_schedule(const Placement& placement, int64_t micro_batches);

// Fill-drain: each worker runs all forwards, stage by stage, then all backwards, from its last
// stage to its first. Ascending; it needs buffered sends (Sends::kBuffered), as the runtime has
// them. Throws std::invalid_argument for counts below 1.
Schedule fill_drain_on(const Placement& placement, int64_t micro_batches);

// The given fill-drain schedule, which has one stage on each worker (Schedule::gpipe, for example),
// with its stages moved to where `placement` has them; each stage keeps its order.
Schedule placed_fill_drain(const Schedule& one_each, const Placement& placement);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_DEFAULT_SCHEDULE_H_
