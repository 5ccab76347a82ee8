// follows_at_once: which backwards a worker runs right after their forwards.
#ifndef GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_
#define GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// [stage][micro-batch]: whether the next action of the forward's worker is the backward of the same
// cell, or its first half. Checkpoint::kExceptLast does not checkpoint such cells, because dropping
// a graph and making it again at once would save nothing.
std::vector<std::vector<bool>> follows_at_once(const Schedule& schedule);

}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_
