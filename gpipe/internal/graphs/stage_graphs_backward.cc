// StageGraphs, as far as it computes the backward of a replayed forward.
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/saved_versions.h"
#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/graphs/stage_graphs_slot.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/tensors/alias.h"
#include "text/exception_text.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;

// A slot keeps at most so many recorded backwards. Few are needed, because which gradients arrive,
// and in which layout, hardly ever changes.
constexpr size_t kMostBackwards = 4;

// Adds up each leaf's gradients separately, so that a recording accumulates nothing. Its walks meet
// no users' code, which would draw random numbers.
class LeavesApart final : public CellGraph::Walk {
 public:
  // `leaves`: edges to all accumulators that the backward reaches.
  explicit LeavesApart(const edge_list& leaves)
      : Walk(CellRandom(/*streams=*/nullptr, 0, 0)), sums(leaves.size()), leaves_(leaves) {}

  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor& /*leaf*/) override {
    const auto place = std::find_if(leaves_.begin(), leaves_.end(),
                                    [&](const Edge& edge) { return edge.function == accumulator; });
    TORCH_INTERNAL_ASSERT(place != leaves_.end());
    return &sums[place - leaves_.begin()];
  }

  std::vector<at::Tensor> sums;  // [leaf]

 private:
  const edge_list& leaves_;
};

}  // namespace

StageGraphs::variable_list StageGraphs::run_backward(Slot& slot,
                                                     const variable_list& gradients) const {
  const SavedVersionsScope versions(slot.tensors, slot.versions, slot.versions_in_forward);
  std::vector<Packet> packets(slot.output_numbers.size());
  for (size_t k = 0; k < packets.size(); ++k)
    packets[k].items.resize(slot.output_numbers[k].size());
  size_t next = 0;
  for (const Output& output : slot.outputs) {
    if (output.needs_grad) packets[output.port].items[output.item].tensor = gradients[next++];
  }
  LeavesApart walk(slot.leaves);
  walk.settings.keep_graph = true;
  int64_t layer = -1;
  std::vector<Packet> of_inputs =
      slot.recorded.graph.backward(std::move(packets), Roots(), BackwardPart::kWhole, walk, layer);
  variable_list results;
  for (const auto& [port, item] : slot.input_gradients) {
    results.push_back(of_inputs.empty() ? at::Tensor()
                                        : std::move(of_inputs[port].items[item].tensor));
  }
  for (at::Tensor& sum : walk.sums) results.push_back(std::move(sum));
  return results;
}

StageGraphs::variable_list StageGraphs::backward(Slot& slot, variable_list gradients) {
  c10::NoGradGuard no_grad;
  use_current_stream();
  slot.used_on = stream_;
  // In a batch norm, a forward counts a batch even if it is not replayed. Such a change of a
  // counter does not matter here.
  for (size_t k = slot.parameters; k < slot.tensors.size(); ++k) {
    if (slot.counters[k]) slot.versions_in_forward[k] = version_of(slot.tensors[k]);
  }
  // If a parameter was changed since the cell's forward, autograd has to find out whether that
  // matters. So no graph is replayed.
  const bool unchanged = versions_of(slot.tensors) == slot.versions_in_forward;
  bool records = usable() && unchanged && is_warm_ && slot.backwards.size() < kMostBackwards;
  LayoutKey layout;
  for (const at::Tensor& gradient : gradients) {
    records = records && (!gradient.defined() || can_be_filled(gradient));
    add_layout(layout, gradient);
    add_place(layout, gradient);
  }
  BackwardGraph* graph = nullptr;
  for (const auto& candidate : slot.backwards) {
    if (unchanged && candidate->layout == layout) graph = candidate.get();
  }
  if (graph == nullptr && records) graph = record_backward(slot, gradients);
  if (graph == nullptr) {
    variable_list results = run_backward(slot, gradients);
    for (at::Tensor& result : results) {
      if (shares_storage(result)) result = copy_in_layout(result);
    }
    return results;
  }
  for (size_t k = 0; k < gradients.size(); ++k) {
    if (gradients[k].defined()) fill_memory(graph->gradients[k], gradients[k]);
  }
  try {
    graph->graph->replay();
  } catch (const std::exception& error) {
    give_up("a replay failed: " + text::message_of(error));
    throw;
  }
  ++use_.replayed;
  variable_list results;
  for (size_t k = 0; k < graph->results.size(); ++k) {
    const at::Tensor& result = graph->results[k];
    const size_t inputs = slot.input_gradients.size();
    // If a hook was added since the forward, it may keep the tensor that it is given. So it gets a
    // copy.
    const bool lent = lend_ && k >= inputs && !has_hooks(*slot.leaves[k - inputs].function);
    results.push_back(!result.defined() || lent
                          ? detached_alias(result)
                          : despite_recordings(*graphs_, [&] { return copy_out(result); }));
  }
  return results;
}

}  // namespace gpipe::internal
