// relabeled: renumbers the micro-batches of a schedule in the order in which each stage takes them.
#ifndef GPIPE_SCHEDULE_RELABEL_H_
#define GPIPE_SCHEDULE_RELABEL_H_

#include <optional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The same table with other numbers of micro-batches: the k-th forward of each stage becomes the
// forward of micro-batch k. The same is done for first parts of a backward (B or I) and for second
// parts (B or W). The result is ascending (ScheduleFacts), so it gives the same bits as all
// ascending schedules. It is returned only if nothing else changes: neither the times of the
// actions (in units of one) nor what each stage and worker holds. Schedule::gpipe, whose backwards
// descend in every stage, becomes fill_drain().
//
// Otherwise the result is nullopt. With the new numbers, a table that is made for another order of
// micro-batches may wait, or deadlock, or have a whole backward between the halves of another. So
// may a table with offloads: add them afterwards (offloads.h). Halves of schedules (Schedule::only)
// may be relabeled, too.
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
