// relabeled: a schedule with its micro-batches renumbered in the order in which each stage takes
// them.
#ifndef GPIPE_SCHEDULE_RELABEL_H_
#define GPIPE_SCHEDULE_RELABEL_H_

#include <optional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The same table with other micro-batches: the k-th forward of each stage becomes that of
// micro-batch k, and so do its k-th first part of a backward (B or I) and its k-th second part (B
// or W). The result is ascending (ScheduleFacts), so it gives the bits of all ascending schedules.
// It is returned only if nothing else changes: neither the times of the actions (in units of one)
// nor what each stage and worker holds. Schedule::gpipe, whose backwards descend in every stage,
// becomes fill_drain().
//
// Otherwise the result is nullopt: with the new numbers a table that is made for another order of
// micro-batches may wait, or deadlock, or have a whole backward between the halves of another.
// Halves of schedules (Schedule::only) may be relabeled, too.
//
// Throws std::invalid_argument if the schedule does not verify with buffered sends.
std::optional<Schedule> relabeled(const Schedule& schedule);

// The old name of relabeled(), kept for programs that use it.
[[deprecated("use relabeled")]] inline std::optional<Schedule> relabelled(
    const Schedule& schedule) {
  return relabeled(schedule);
}

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_RELABEL_H_
