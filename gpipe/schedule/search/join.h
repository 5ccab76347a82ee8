// joined: a schedule with fewer split backwards.
#ifndef GPIPE_SCHEDULE_SEARCH_JOIN_H_
#define GPIPE_SCHEDULE_SEARCH_JOIN_H_

#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {

// Where a worker runs a cell's weight gradient right after its input gradient, this replaces both
// by a whole backward if that costs no more than both and the makespan does not grow (the stage
// before gets its gradient later). Splitting costs time, and many splits gain nothing.
//
// Guarantees: the makespan under these costs is not longer, nothing is held longer, and an
// ascending schedule stays so. If all pairs can be joined, all are. Otherwise the number of joined
// pairs is not always the largest possible, because pairs are taken in the order of time, wherever
// the makespan does not grow.
//
// Throws as simulate() does.
Schedule joined(const Schedule& schedule, const SimulateOptions& costs);
Schedule joined(const Schedule& schedule, const Routes& routes, const SimulateOptions& costs);

// How many cells of the schedule have a split backward.
int64_t splits(const Schedule& schedule);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_SEARCH_JOIN_H_
