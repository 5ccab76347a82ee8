// Group gradients: what a step with groups adds to the parameters' gradients at its end.
#ifndef GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
#define GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_

#include <cstdint>
#include <vector>

#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Adds the groups up, over all replicas of `world`, and the sum to each leaf's .grad; runs the
// leaves' post-accumulate hooks. `stages`: [stage]; nothing is left in them. `groups_each`: of each
// replica. Called within in_call(), by all processes.
//
// Throws c10::ValueError, over replicas, for a leaf that no layer has registered, and for what
// sum_over_replicas() refuses.
void accumulate_groups(std::vector<GroupSums>& stages, const ModelState& model, const World& world,
                       int64_t groups_each);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
