#include "gpipe/internal/cell/cell.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "gpipe/internal/backward/engine_node.h"
#include "gpipe/internal/backward/local_backward.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/model/model_state.h"

namespace gpipe::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;

// The sequence number of accumulators, which have no place in the order of nodes.
constexpr uint64_t kNoNumber = std::numeric_limits<uint64_t>::max();

// Returns the gradient on the device that the edge expects, because a layer may have moved its
// output to another device.
at::Tensor where_wanted(at::Tensor gradient, const Edge& edge) {
  const auto& wanted = edge.function->input_metadata(edge.input_nr);
  if (wanted.was_default_constructed() || wanted.device() == gradient.device()) return gradient;
  c10::NoGradGuard no_grad;
  return gradient.to(wanted.device());
}

}  // namespace

void Sinks::add(size_t packet, const at::Tensor& tensor, bool wanted) {
  if (places_.size() <= packet) places_.resize(packet + 1);
  int place = -1;
  if (wanted) {
    if (!sink_) sink_ = make_node<GradientSink>();
    place = static_cast<int>(sink_->attach(tensor));
  }
  places_[packet].push_back(place);
}

std::vector<Packet> Sinks::take() {
  std::vector<Packet> packets(places_.size());
  for (size_t k = 0; k < places_.size(); ++k) {
    for (int place : places_[k]) {
      Item item;
      if (place >= 0 && !sink_->gradients().empty()) {
        item.tensor = std::move(sink_->gradients()[place]);
      }
      packets[k].items.push_back(std::move(item));
    }
  }
  return packets;
}

void CellGraph::Walk::begin(const CellGraph& graph) {
  graph_ = &graph;
  others_ = 0;
  progress = WalkProgress();
  settings.sinks = {graph.inputs_.node(), graph.targets_.node()};
  settings.own = graph.own_nodes();
}

int64_t CellGraph::Walk::layer() const {
  // The number of a node that comes from outside the cell may be another thread's, so the layer is
  // at most the last one.
  if (progress.node != kNoNumber) {
    return std::min(graph_->last_layer(), graph_->layer_of(progress.node));
  }
  // The walk got here from outside the graph. The layer is known only if the graph has a loss, or a
  // single layer.
  const bool only_one = graph_->has_loss_ || graph_->last_layer() == 0;
  return !progress.found && only_one ? graph_->last_layer() : graph_->before_layers();
}

void CellGraph::Walk::before_users_code(const Node& node, uint64_t next) {
  if (is_custom_function(node) && repeat_forward(node, next)) return;
  const uint64_t number = node.sequence_nr();
  if (number == kNoNumber) return enter_leaf(static_cast<const AccumulateGrad&>(node).variable);
  if (number < graph_->begin_) return enter(0, 0);
  const int64_t layer = graph_->layer_of(number);
  enter(layer, number - graph_->start_of(layer) + 1);
}

// Lets a custom function that computes its forward again in its backward draw the same numbers.
bool CellGraph::Walk::repeat_forward(const Node& node, uint64_t next) {
  for (const DrawRecord& record : graph_->draws_) {
    // The draws of the function's forward come after its own node, and before the next node.
    if (record.sequence_nr <= node.sequence_nr() || record.sequence_nr > next) continue;
    random_.streams->repeat(random_.step_seed, random_.micro_batch, record);
    return true;
  }
  return false;
}

// A parameter's numbers depend on its place in the model, not on the stage that owns it. A leaf
// that no layer has registered accumulates in the first stage on its device.
void CellGraph::Walk::enter_leaf(const at::Tensor& leaf) {
  std::optional<size_t> number;
  if (random_.model != nullptr) number = random_.model->number_of(leaf);
  const uint64_t device = static_cast<uint64_t>(leaf.device().index() + 1) << 32;
  random_.streams->enter_leaf(random_.step_seed, random_.micro_batch,
                              number ? uint64_t{*number} : ~(device + others_++));
}

void CellGraph::Walk::enter(int64_t layer, uint64_t node) {
  random_.streams->enter_backward(random_.step_seed, random_.micro_batch,
                                  random_.first_layer + layer, node);
}

void CellGraph::begin() {
  thread_ = at::RecordFunction::currentThreadId();
  begin_ = at::sequence_number::peek();
}

void CellGraph::begin_loss(size_t layers) {
  begin();
  layer_ends_.assign(layers, 0);  // every sequence number counts as behind the layers
  has_layers_ = false;
  has_loss_ = true;
}

void CellGraph::add_output(size_t packet, size_t item, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return;
  outputs_.push_back({static_cast<uint32_t>(packet), static_cast<uint32_t>(item),
                      torch::autograd::impl::gradient_edge(tensor)});
}

void CellGraph::append_loss(CellGraph loss) {
  has_loss_ = true;
  targets_ = std::move(loss.targets_);
  outputs_ = std::move(loss.outputs_);
  draws_.insert(draws_.end(), loss.draws_.begin(), loss.draws_.end());
}

std::vector<Packet> CellGraph::backward(std::vector<Packet> gradients, Roots roots,
                                        BackwardPart part, Walk& walk, int64_t& layer) {
  add_roots(std::move(gradients), roots);
  walk.begin(*this);
  layer = last_layer();
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

int64_t CellGraph::last_layer() const {
  return static_cast<int64_t>(layer_ends_.size()) - (has_loss_ ? 0 : 1);
}

int64_t CellGraph::before_layers() const { return has_layers_ ? -1 : last_layer(); }

int64_t CellGraph::layer_of(uint64_t sequence_nr) const {
  if (sequence_nr < begin_) return before_layers();
  if (undivided_ && sequence_nr < layer_ends_.front()) return before_layers();
  return std::upper_bound(layer_ends_.begin(), layer_ends_.end(), sequence_nr) -
         layer_ends_.begin();
}

uint64_t CellGraph::start_of(int64_t layer) const {
  return layer == 0 ? begin_ : std::max(begin_, layer_ends_[layer - 1]);
}

}  // namespace gpipe::internal
