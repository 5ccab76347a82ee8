// world_of_replicas, even_balance, placement_over: where the layers of a training run are, over any
// number of processes.
#ifndef DISTRIBUTED_LAYOUT_H_
#define DISTRIBUTED_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"
#include "gpipe/world.h"

namespace distributed {

// The processes as so many replicas of one pipeline, each of as many processes. Throws
// std::invalid_argument that names the flag --replicas if they cannot be shared equally.
gpipe::World world_of_replicas(const gpipe::World& processes, int64_t replicas);

// As many layers for each stage, the rest for the first ones. Throws std::invalid_argument for
// fewer than one stage and for more than there are layers.
std::vector<int64_t> even_balance(int64_t layers, int64_t stages);

// Where the schedule has its stages. Of several
// processes (of each replica) each has as many workers, neighbors by number. Throws
// std::invalid_argument that names the flag --stages if there are fewer workers than processes.
gpipe::Placement placement_over(const gpipe::World& world, const gpipe::ScheduleChoice& schedule,
                                int64_t stages);

}  // namespace distributed

#endif  // DISTRIBUTED_LAYOUT_H_
