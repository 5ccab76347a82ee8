// world_of_replicas, even_balance, placement_over: lay out the layers of a training run over any
// number of processes.
#ifndef DISTRIBUTED_LAYOUT_H_
#define DISTRIBUTED_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"
#include "gpipe/world.h"

namespace distributed {

// The processes as `replicas` replicas of one pipeline, each with the same number of processes.
// Throws std::invalid_argument that names the flag --replicas if they cannot be shared equally.
gpipe::World world_of_replicas(const gpipe::World& processes, int64_t replicas);

// The same number of layers for each stage; the first stages get the rest. Throws
// std::invalid_argument for fewer than one stage and for more stages than layers.
std::vector<int64_t> even_balance(int64_t layers, int64_t stages);

// The placement of the schedule's stages. If a replica has several processes, each gets the same
// number of workers, with consecutive numbers. Throws std::invalid_argument that names the flag
// --stages if there are fewer workers than processes.
gpipe::Placement placement_over(const gpipe::World& world, const gpipe::ScheduleChoice& schedule,
                                int64_t stages);

}  // namespace distributed

#endif  // DISTRIBUTED_LAYOUT_H_
