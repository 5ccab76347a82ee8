// v_pattern: orders in a V that repeat a pattern. Internal to gpipe/schedule.
#ifndef GPIPE_SCHEDULE_SEARCH_V_PATTERN_H_
#define GPIPE_SCHEDULE_SEARCH_V_PATTERN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/search/workload.h"

namespace gpipe::internal {

// The pattern of Qi et al., 2024: each micro-batch comes six units of time after the one before it,
// and an action takes one unit. From worker to worker the forwards of the first stages are `up`
// units apart (as are the gradients of the second stages), the forwards of the second stages `down`
// units (as are the gradients of the first). At the turns a micro-batch waits as little as is
// needed for a worker never to have two actions in one unit. Weight gradients are in the units that
// are left free, the oldest first. Returns nullopt if no waiting helps. With small steps workers
// hold little and wait long; with large steps they hold much and wait little.
//
// V-Min has the steps 1 and 1, V-Half 2 and 1.
std::optional<Order> v_pattern(int64_t workers, int64_t micro_batches, int64_t up, int64_t down);

// The number of stage x micro-batch pairs that V-Min's pattern holds with any number of
// micro-batches: about two thirds of the workers, and one or two more.
int64_t least_held(int64_t workers);

// All pairs of steps, up and down, each below the six units of a period.
std::vector<std::array<int64_t, 2>> all_steps();

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_V_PATTERN_H_
