// GroupScope: puts the sums of a group in the place of the parameters' .grad, for one backward of a
// cell.
#ifndef GPIPE_INTERNAL_STAGE_GROUP_SCOPE_H_
#define GPIPE_INTERNAL_STAGE_GROUP_SCOPE_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <deque>

#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/backward/in_place_of_grad.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/model/model_state.h"

namespace gpipe::internal {

// While the scope lives, the sums of a micro-batch's group stand in for the .grad of the parameters
// that the stage owns. The scope lives during all of the cell's backward, because users' code may
// run a backward of its own.
//
// Thread-safety: none.
class GroupScope {
 public:
  // `sums`: the sums of the stage; if null, the scope has no effect.
  GroupScope(const CellPlan& plan, int64_t stage, int64_t micro_batch, BackwardPart part,
             GroupSums* sums) {
    if (sums == nullptr) return;
    for (const ModelState::Parameter& parameter : plan.model.parameters()) {
      const at::Tensor& leaf = parameter.tensor;
      if (!is_owned(&parameter, stage) || !leaf.requires_grad()) continue;
      at::Tensor& sum = part == BackwardPart::kInputs
                            ? early_.emplace_back()
                            : *sums->sum_of(torch::autograd::impl::grad_accumulator(leaf), leaf,
                                            plan.group_of(micro_batch));
      scopes_.emplace_back(leaf, sum);
    }
  }

  // Whether the scope of `stage` replaces the .grad of `leaf`, which ModelState::find() gave.
  static bool is_owned(const ModelState::Parameter* leaf, int64_t stage) {
    return leaf != nullptr && leaf->stages.front() == stage;
  }

  // Called after the first half of a split backward. Throws c10::Error if a gradient has arrived in
  // that half, because it is not known yet to which group the next second half will belong.
  void check_first_half() {
    if (early_.empty()) return;
    scopes_.clear();
    for (const at::Tensor& gradient : early_) {
      TORCH_CHECK(!gradient.defined(),
                  "users' code (a hook, or a custom function) ran a backward of its own, towards a "
                  "parameter, in the first half of a split backward, which GPipeOptions::groups "
                  "cannot add up in order; give a schedule without split backwards (1F1B)");
    }
  }

 private:
  std::deque<at::Tensor> early_;  // gradients that arrive in a first half
  std::deque<InPlaceOfGradScope> scopes_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_GROUP_SCOPE_H_
