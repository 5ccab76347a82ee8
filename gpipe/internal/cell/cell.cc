#include "gpipe/internal/cell/cell.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "gpipe/internal/backward/engine_node.h"
#include "gpipe/internal/backward/local_backward.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;

// Returns the gradient on the device that the edge expects, because a layer may have moved its
// output to another device.
at::Tensor where_wanted(at::Tensor gradient, const Edge& edge) {
  const auto& wanted = edge.function->input_metadata(edge.input_nr);
  if (wanted.was_default_constructed() || wanted.device() == gradient.device()) return gradient;
  c10::NoGradGuard no_grad;
  return gradient.to(wanted.device());
}

}  // namespace

void CellGraph::Walk::begin(const CellGraph& graph) {
  layers_ = &graph.layers_;
  random_.begin(graph.layers_, graph.draws_);
  progress = WalkProgress();
  settings.sinks = {graph.inputs_.node(), graph.targets_.node()};
  settings.own = graph.layers_.own_nodes();
}

void CellGraph::add_output(size_t packet, size_t item, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return;
  outputs_.push_back({static_cast<uint32_t>(packet), static_cast<uint32_t>(item),
                      torch::autograd::impl::gradient_edge(tensor)});
}

void CellGraph::append_loss(CellGraph loss) {
  layers_.add_loss();
  targets_ = std::move(loss.targets_);
  outputs_ = std::move(loss.outputs_);
  draws_.insert(draws_.end(), loss.draws_.begin(), loss.draws_.end());
}

std::vector<Packet> CellGraph::backward(std::vector<Packet> gradients, Roots roots,
                                        BackwardPart part, Walk& walk, int64_t& layer) {
  add_roots(std::move(gradients), roots);
  walk.begin(*this);
  layer = layers_.last();
  try {
    run_for_all_gradients([&] { run(std::move(roots), part, walk); });
  } catch (...) {
    layer = walk.layer();
    throw;
  }
  std::vector<Packet> result;
  if (part != BackwardPart::kWeights) result = inputs_.take();
  if (targets_.node() != nullptr && walk.target_gradients != nullptr) {
    *walk.target_gradients = std::move(targets_.take()[0]);
  }
  if (!walk.settings.keep_graph) release(part);
  return result;
}

void CellGraph::add_roots(std::vector<Packet> gradients, Roots& roots) {
  for (const Output& output : outputs_) {
    if (output.packet >= gradients.size()) continue;
    c10::SmallVector<Item, 2>& items = gradients[output.packet].items;
    if (output.item >= items.size() || !items[output.item].tensor.defined()) continue;
    roots.add(output.edge, where_wanted(std::move(items[output.item].tensor), output.edge));
  }
}

void CellGraph::run(Roots roots, BackwardPart part, Walk& walk) {
  switch (part) {
    case BackwardPart::kWhole:
      return run_local_backward(roots.edges, roots.gradients, walk);
    case BackwardPart::kInputs:
      weights_ = run_input_backward(roots.edges, roots.gradients, walk);
      return;
    case BackwardPart::kWeights:
      return weights_.run(walk);
  }
}

void CellGraph::release(BackwardPart part) {
  if (part != BackwardPart::kInputs || weights_.empty()) {
    *this = CellGraph();
    return;
  }
  inputs_ = Sinks();
  targets_ = Sinks();
  outputs_.clear();
}

}  // namespace gpipe::internal
