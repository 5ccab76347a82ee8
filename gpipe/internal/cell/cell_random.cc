#include "gpipe/internal/cell/cell_random.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <limits>
#include <optional>

#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/model/model_state.h"

namespace gpipe::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// The sequence number of accumulators, which have no place in the order of nodes.
constexpr uint64_t kNoNumber = std::numeric_limits<uint64_t>::max();

}  // namespace

void CellRandom::begin(const LayerNumbers& layers, const std::vector<DrawRecord>& draws) {
  layers_ = &layers;
  draws_ = &draws;
  others_ = 0;
}

void CellRandom::before_users_code(const Node& node, uint64_t next) {
  if (is_custom_function(node) && repeat_forward(node, next)) return;
  const uint64_t number = node.sequence_nr();
  if (number == kNoNumber) return enter_leaf(static_cast<const AccumulateGrad&>(node).variable);
  const LayerNumbers::Place place = layers_->place_of(number);
  streams_->enter_backward(step_seed_, micro_batch_, first_layer_ + place.layer, place.node);
}

// Lets a custom function that computes its forward again in its backward draw the same numbers.
bool CellRandom::repeat_forward(const Node& node, uint64_t next) {
  for (const DrawRecord& record : *draws_) {
    // The draws of the function's forward come after its own node, and before the next node.
    if (record.sequence_nr <= node.sequence_nr() || record.sequence_nr > next) continue;
    streams_->repeat(step_seed_, micro_batch_, record);
    return true;
  }
  return false;
}

// A parameter's numbers depend on its place in the model, not on the stage that owns it. A leaf
// that no layer has registered accumulates in the first stage on its device.
void CellRandom::enter_leaf(const at::Tensor& leaf) {
  std::optional<size_t> number;
  if (model_ != nullptr) number = model_->number_of(leaf);
  const uint64_t device = static_cast<uint64_t>(leaf.device().index() + 1) << 32;
  streams_->enter_leaf(step_seed_, micro_batch_,
                       number ? uint64_t{*number} : ~(device + others_++));
}

}  // namespace gpipe::internal
