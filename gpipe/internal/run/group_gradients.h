// Group gradients: at the end of a step with groups, adds the groups' sums to the parameters'
// gradients.
#ifndef GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
#define GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// The work has two halves, the constructor and accumulate(), so that nothing is added unless all
// processes have finished the constructor. All processes call both within in_call().
class GroupGradients {
 public:
  // Adds the groups up, over all replicas of `world`. It needs only the processes that have the
  // same stages; the others may still be computing. `stages`: [stage]; they are empty afterwards.
  // `groups_each`: the number of groups in each replica.
  //
  // If there are several replicas, throws c10::ValueError for a leaf that no layer has registered,
  // and for a gradient that is sparse, or of another type or shape than its parameter.
  GroupGradients(std::vector<GroupSums>& stages, const ModelState& model, const World& world,
                 int64_t groups_each);

  // If there are several replicas, waits until all processes have called it. Then adds each sum to
  // its leaf's .grad and runs the leaf's post-accumulate hooks. No sum is left afterwards.
  //
  // Throws FoundByAll if the replicas have different parameters.
  void accumulate();

 private:
  void reduce(const ModelState& model, int64_t groups_each);

  const World& world_;
  std::vector<GroupSums::Leaf> leaves_;
  std::vector<at::Tensor> parameters_;  // over replicas, the list is the same in each replica
  bool are_summed_ = true;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
