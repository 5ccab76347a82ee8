// follows_at_once, check_whole_step: whether a schedule has both forwards and backwards, and which
// backwards a worker runs right after their forwards.
#ifndef GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_
#define GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_

#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// [stage][micro-batch]: whether the next action of the forward's worker is the backward of the same
// cell, or its first half. Checkpoint::kExceptLast does not checkpoint such cells, because dropping
// a graph and making it again at once would save nothing.
std::vector<std::vector<bool>> follows_at_once(const Schedule& schedule);

namespace internal {

// "forwards" or "backwards" if the schedule has none of these, otherwise null. Schedule::verify()
// and simulate() also accept such a half of a schedule.
const char* missing_half(const Schedule& schedule);

// Throws std::invalid_argument with a message that begins with `prefix` if a half is missing.
void check_whole_step(const Schedule& schedule, const std::string& prefix);

}  // namespace internal
}  // namespace gpipe

#endif  // GPIPE_SCHEDULE_FOLLOWS_AT_ONCE_H_
