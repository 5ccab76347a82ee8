// Group gradients: what a step with groups adds to the parameters' gradients at its end.
#ifndef GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
#define GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// In two halves, so that nothing is added unless all processes have come so far. Both are called
// within in_call(), by all processes.
class GroupGradients {
 public:
  // Adds the groups up, over all replicas of `world`: together with the processes that have the
  // same stages, while those of others may still compute. `stages`: [stage]; nothing is left in
  // them. `groups_each`: of each replica.
  //
  // Throws c10::ValueError, over replicas, for a leaf that no layer has registered, and for what
  // sum_over_replicas() refuses.
  GroupGradients(std::vector<GroupSums>& stages, const ModelState& model, const World& world,
                 int64_t groups_each);

  // Waits, over replicas, until all processes are here; then adds each sum to its leaf's .grad and
  // runs the leaf's post-accumulate hooks. Nothing is left.
  //
  // Throws FoundByAll if replicas have other parameters.
  void accumulate();

 private:
  void reduce(const ModelState& model, int64_t groups_each);

  const World& world_;
  std::vector<GroupSums::Leaf> leaves_;
  std::vector<at::Tensor> parameters_;  // over replicas: the same list in each
  bool are_summed_ = true;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_GROUP_GRADIENTS_H_
