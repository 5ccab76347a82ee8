// StageWalk: what a stage decides about the leaves, and the graphs from outside, that the walks of
// one backward of a cell reach.
#ifndef GPIPE_INTERNAL_STAGE_STAGE_WALK_H_
#define GPIPE_INTERNAL_STAGE_STAGE_WALK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/leaf_sums.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/stage/stage_code.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

// Requirements: the constructor's arguments outlive this object.
//
// Thread-safety: none; only one thread at a time works on a stage.
class StageWalk final : public CellGraph::Walk {
 public:
  StageWalk(StageCode& code, c10::Device device, CellRandom random, const RunContext& run,
            int64_t micro_batch, const BackwardTask& task);

  // Takes the terms of leaves that this stage accumulates and that its walk does not compute: of
  // other stages, or of a detached loss.
  void take(LeafSums& sums);
  // Runs the backward of a loss that starts at detached outputs, and returns their gradients.
  std::vector<Packet> run_loss(std::vector<Packet> gradients, CellGraph& loss);
  // Returns the terms that were taken, from which the walk through the layers' graph starts, too.
  Roots take_roots() { return std::exchange(roots_, Roots()); }
  // Called after the walks. Adds the gradients that the caller asked for to run.requested.
  void hand_over_requested();

 private:
  void enter_foreign(const torch::autograd::Node& node) override;
  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor& leaf) override;
  at::Tensor* in_place_of_grad(const NodePtr& accumulator, const at::Tensor& leaf) override;

  void notice_unregistered(const torch::autograd::Node* accumulator, const at::Tensor& leaf) const;
  const torch::autograd::Node* asked_for(const torch::autograd::Node* accumulator,
                                         const at::Tensor& leaf) const;
  bool is_requested(const torch::autograd::Node* accumulator, const at::Tensor& leaf) const;
  at::Tensor* sum_in_loss(const NodePtr& accumulator, const at::Tensor& leaf);

  StageCode& code_;
  const c10::Device device_;
  const RunContext& run_;
  const int64_t micro_batch_;
  const BackwardTask& task_;
  Roots roots_;         // what take() took, unless the caller asked for the gradients
  LeafSums requested_;  // gradients that the caller asked for; terms as in `roots_` come first
  std::vector<const torch::autograd::Node*> sent_;  // accumulators of the leaves in `roots_`
  std::optional<LeafSums> of_loss_;  // while the walk is in the graph of a loss alone
};

// Called while the error of a backward is handled, whose last node was that layer's. Throws
// LibTorch's error for a tensor that was changed since a graph has saved it, and says that it may
// be a buffer of the layer. Throws all other errors as they are. `waited`: whether the graph had
// waited, as after the first half of a split backward or after an early recompute.
[[noreturn]] void rethrow_changed(const Layer& layer, bool waited);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_STAGE_WALK_H_
