#include "gpipe/internal/stage.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/alias.h"
#include "gpipe/internal/local_backward.h"
#include "gpipe/internal/transfer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

bool differentiable(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

// Notes, when a layer's output receives its gradient, that this layer's backward begins.
class LayerMark : public torch::autograd::FunctionPreHook {
 public:
  LayerMark(std::shared_ptr<std::atomic<int64_t>> layer, int64_t position)
      : layer_(std::move(layer)), position_(position) {}
  variable_list operator()(const variable_list& gradients) override {
    layer_->store(position_, std::memory_order_relaxed);
    return gradients;
  }

 private:
  std::shared_ptr<std::atomic<int64_t>> layer_;
  int64_t position_;
};

// The first graph node behind a layer's result, to hang a LayerMark on.
torch::autograd::Node* producer_of(torch::nn::AnyValue& value) {
  if (auto* tensor = value.try_get<at::Tensor>()) {
    return tensor->defined() ? tensor->grad_fn().get() : nullptr;
  }
  if (auto* list = value.try_get<std::vector<at::Tensor>>()) {
    for (const at::Tensor& tensor : *list) {
      if (tensor.defined() && tensor.grad_fn()) return tensor.grad_fn().get();
    }
  }
  return nullptr;
}

Edge edge_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  return torch::autograd::impl::gradient_edge(tensor);
}

bool wants_grad(const std::vector<Packet>& inputs) {
  for (const Packet& packet : inputs) {
    for (const Item& item : packet.items) {
      if (item.needs_grad) return true;
    }
  }
  return false;
}

void backward_from(const edge_list& roots, variable_list gradients, bool keep, Captured* captured,
                   Boundary* boundary) {
  if (roots.empty()) return;
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (captured == nullptr) {
    if (run_local_backward(roots, gradients, keep)) return;
    engine.execute(roots, gradients, /*keep_graph=*/keep, /*create_graph=*/false,
                   /*accumulate_grad=*/true);
    return;
  }
  edge_list ends;
  const uint32_t inputs = boundary == nullptr ? 0 : boundary->num_inputs();
  for (uint32_t n = 0; n < inputs; ++n) ends.emplace_back(boundary->getptr(), n);
  ends.insert(ends.end(), captured->leaves.begin(), captured->leaves.end());
  if (ends.empty()) return;
  variable_list arrived = engine.execute(roots, gradients, /*keep_graph=*/keep,
                                         /*create_graph=*/false, /*accumulate_grad=*/false, ends);
  c10::NoGradGuard no_grad;
  for (size_t k = 0; k < captured->leaves.size(); ++k) {
    Captured::add_to(captured->sums[k], arrived[inputs + k]);
  }
  arrived.resize(inputs);
  if (boundary != nullptr) boundary->gradients() = std::move(arrived);
}

}  // namespace

Stage::Stage(int64_t index, c10::Device device, std::vector<Layer> layers,
             std::vector<skip::Key> incoming, std::vector<skip::Key> outgoing,
             std::vector<int> gradient_order)
    : index_(index),
      device_(device),
      layers_(std::move(layers)),
      incoming_(std::move(incoming)),
      outgoing_(std::move(outgoing)),
      gradient_order_(std::move(gradient_order)) {
  for (const Layer& layer : layers_) {
    const std::shared_ptr<torch::nn::Module> module = layer.module.ptr();
    for (const at::Tensor& parameter : module->parameters()) parameters_.push_back(parameter);
  }
}

bool Stage::trainable() const {
  if (captures_grad_) return true;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.requires_grad()) return true;
  }
  return false;
}

std::string Stage::current_layer() const {
  if (running_layer_ < 0) return "stage " + std::to_string(index_);
  if (running_layer_ == static_cast<int64_t>(layers_.size())) return "the loss function";
  const Layer& layer = layers_[running_layer_];
  return "layer " + std::to_string(layer.index) + " ('" + layer.name + "')";
}

Stage::Result Stage::run(const CellPlan& plan, int64_t micro_batch, std::vector<Packet>& inputs,
                         bool record, const Cell* watched) {
  Result result;
  CellGraph& graph = result.graph;
  const bool keep_inputs = watched != nullptr;
  std::vector<std::vector<at::Tensor>> tensors(inputs.size());
  if (record) graph.sinks.resize(inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    tensors[k].reserve(inputs[k].items.size());
    for (Item& item : inputs[k].items) {
      tensors[k].push_back(detached_alias(item.tensor));
      if (!keep_inputs) item.tensor = at::Tensor();
      if (!record) continue;
      int sink = -1;
      if (item.needs_grad) {
        if (!graph.boundary) graph.boundary = std::make_shared<Boundary>();
        sink = static_cast<int>(graph.boundary->attach(tensors[k].back()));
      }
      graph.sinks[k].push_back(sink);
    }
  }

  skip::Tracker tracker;
  for (size_t k = 0; k < incoming_.size(); ++k) {
    tracker.stash(incoming_[k], std::move(tensors[k + 1][0]));
  }
  std::optional<skip::TrackerScope> tracker_scope(tracker);
  DrawsScope draws_scope(&draws_);

  torch::nn::AnyValue value = to_any({inputs[0].kind, std::move(tensors[0])});
  tensors.clear();  // a layer's input is to be freed when the layer is done with it
  torch::autograd::Node* marked = nullptr;
  if (record) graph.layer = std::make_shared<std::atomic<int64_t>>(-1);
  for (size_t position = 0; position < layers_.size(); ++position) {
    Layer& layer = layers_[position];
    running_layer_ = static_cast<int64_t>(position);
    draws_.enter(plan.step_seed, micro_batch, layer.index);
    RunningStatisticsScope::enter_layer(layer.index);
    if (layer.skips.empty()) {
      value = layer.module.any_forward(std::move(value));
    } else {
      skip::CallScope call(layer.skips);
      value = layer.module.any_forward(std::move(value));
      call.finish();
    }
    if (watched != nullptr) check_unchanged(*watched, inputs, "while it is checkpointed");
    if (record) {
      torch::autograd::Node* node = producer_of(value);
      if (node != nullptr && node != marked) {
        node->add_pre_hook(
            std::make_unique<LayerMark>(graph.layer, static_cast<int64_t>(position)));
        marked = node;
      }
    }
  }
  result.activation = from_any(std::move(value));
  result.skips.reserve(outgoing_.size());
  for (const skip::Key& key : outgoing_) result.skips.push_back(tracker.pop(key));
  tracker_scope.reset();

  if (record) {
    graph.outputs.resize(1 + result.skips.size());
    for (const at::Tensor& tensor : result.activation.tensors) {
      graph.outputs[0].push_back(edge_of(tensor));
    }
    for (size_t k = 0; k < result.skips.size(); ++k) {
      graph.outputs[k + 1].push_back(edge_of(result.skips[k]));
    }
  }
  return result;
}

void Stage::check_unchanged(const Cell& cell, const std::vector<Packet>& inputs,
                            const char* when) const {
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (size_t n = 0; n < inputs[k].items.size(); ++n) {
      TORCH_CHECK(
          version_of(inputs[k].items[n].tensor) == cell.versions[k][n], current_layer(),
          " changed an input of stage ", index_, " in place ", when,
          "; its recompute would start from the changed values and give wrong gradients. Make "
          "the layer not in-place, put it behind another layer of its partition by moving "
          "the cut, or use Checkpoint::kNever");
    }
  }
}

std::vector<Packet> Stage::forward(const CellPlan& plan, int64_t micro_batch,
                                   std::vector<Packet> inputs, Cell& cell, const CellLoss& loss,
                                   StatisticsLog* statistics) {
  for (Packet& packet : inputs) arrive(packet, device_);
  const bool has_grad_source = plan.record && (trainable() || wants_grad(inputs));
  cell = Cell();
  cell.checkpointed = has_grad_source && micro_batch < plan.checkpointed[index_];
  if (cell.checkpointed) {
    for (const Packet& packet : inputs) {
      auto& versions = cell.versions.emplace_back();
      for (const Item& item : packet.items) versions.push_back(version_of(item.tensor));
    }
  }

  Result result;
  {
    RunningStatisticsScope statistics_scope(
        plan.defer_batch_norm ? RunningStatistics::kDefer : RunningStatistics::kUpdate,
        *plan.tracked, statistics, micro_batch);
    if (cell.checkpointed) {
      c10::NoGradGuard no_grad;
      CheckpointPhaseScope phase(CheckpointPhase::kCheckpointing);
      result = run(plan, micro_batch, inputs, /*record=*/false, &cell);
      cell.inputs = std::move(inputs);
    } else {
      result = run(plan, micro_batch, inputs, /*record=*/plan.record, nullptr);
      inputs.clear();
      cell.graph = std::move(result.graph);
    }
  }

  std::vector<Packet> outputs(1 + result.skips.size());
  auto put = [&](size_t k, const at::Tensor& tensor) {
    const bool needs_grad = cell.checkpointed
                                ? differentiable(tensor)
                                : plan.record && tensor.defined() && tensor.requires_grad();
    if (needs_grad && !has_grad_source) captures_grad_ = true;
    outputs[k].items.push_back({detached_alias(tensor), needs_grad});
  };
  outputs[0].kind = result.activation.kind;
  for (const at::Tensor& tensor : result.activation.tensors) put(0, tensor);
  for (size_t k = 0; k < result.skips.size(); ++k) put(k + 1, result.skips[k]);

  if (loss) {
    std::vector<at::Tensor> values = std::move(result.activation.tensors);
    if (cell.checkpointed) {
      for (size_t n = 0; n < values.size(); ++n) {
        values[n] = detached_alias(values[n]);
        int sink = -1;
        if (outputs[0].items[n].needs_grad) {
          if (!cell.loss_boundary) cell.loss_boundary = std::make_shared<Boundary>();
          sink = static_cast<int>(cell.loss_boundary->attach(values[n]));
        }
        cell.loss_sinks.push_back(sink);
      }
    }
    // The loss may draw random numbers, too: it counts as the layer behind the last.
    draws_.enter(plan.step_seed, micro_batch, layers_.empty() ? 0 : layers_.back().index + 1);
    DrawsScope draws_scope(&draws_);
    running_layer_ = static_cast<int64_t>(layers_.size());
    LossResult scalar = loss(micro_batch, values);
    cell.loss = edge_of(scalar.loss);
    cell.loss_seed = std::move(scalar.seed);
    // The outputs' own edges are no roots any more; the loss is the only one.
    if (!cell.checkpointed) cell.graph.outputs[0].clear();
  }
  return outputs;
}

CellGraph Stage::recompute(const CellPlan& plan, int64_t micro_batch, Cell& cell, bool keep) {
  check_unchanged(cell, cell.inputs, "between its forward and its recompute");
  std::vector<Packet> copy;
  if (keep) copy = cell.inputs;
  at::ThreadLocalStateGuard state(*plan.forward_state);
  OperatorModeScope mode;
  c10::AutoGradMode grad_mode(true);
  CheckpointPhaseScope phase(CheckpointPhase::kRecomputing);
  RunningStatisticsScope statistics(RunningStatistics::kKeep, *plan.tracked, nullptr, micro_batch);
  return run(plan, micro_batch, keep ? copy : cell.inputs, /*record=*/true, nullptr).graph;
}

std::vector<Packet> Stage::backward(const CellPlan& plan, int64_t micro_batch,
                                    std::vector<Packet> gradients, Cell& cell, bool keep,
                                    Captured* captured) {
  for (Packet& packet : gradients) arrive(packet, device_);
  running_layer_ = -1;
  if (cell.loss_boundary) {
    // A checkpointed cell with a loss: the loss's own graph first.
    running_layer_ = static_cast<int64_t>(layers_.size());
    backward_from({cell.loss}, {cell.loss_seed}, keep, captured, cell.loss_boundary.get());
    gradients.resize(1);
    gradients[0].items.clear();
    for (int sink : cell.loss_sinks) {
      Item item;
      auto& arrived = cell.loss_boundary->gradients();
      if (sink >= 0 && !arrived.empty()) item.tensor = std::move(arrived[sink]);
      gradients[0].items.push_back(std::move(item));
    }
  }
  bool any_gradient = cell.loss.is_valid();
  for (const Packet& packet : gradients) {
    for (const Item& item : packet.items) any_gradient = any_gradient || item.tensor.defined();
  }

  CellGraph recomputed;
  // Nothing arrived: a branch that the loss does not use. Its recompute would be for nothing.
  if (cell.checkpointed && any_gradient) {
    recomputed = recompute(plan, micro_batch, cell, keep);
  }
  CellGraph& graph = cell.checkpointed ? recomputed : cell.graph;

  edge_list roots;
  variable_list seeds;
  if (!cell.checkpointed && cell.loss.is_valid()) {
    roots.push_back(cell.loss);
    seeds.push_back(cell.loss_seed);
  }
  for (int k : gradient_order_) {
    if (static_cast<size_t>(k) >= graph.outputs.size() ||
        static_cast<size_t>(k) >= gradients.size()) {
      continue;
    }
    for (size_t n = 0; n < graph.outputs[k].size() && n < gradients[k].items.size(); ++n) {
      at::Tensor& gradient = gradients[k].items[n].tensor;
      if (!graph.outputs[k][n].is_valid() || !gradient.defined()) continue;
      roots.push_back(graph.outputs[k][n]);
      seeds.push_back(std::move(gradient));
    }
  }
  gradients.clear();
  if (graph.layer) graph.layer->store(-1, std::memory_order_relaxed);
  try {
    // Until a LayerMark says better: the loss where it is part of this graph, else the last layer.
    const bool with_loss = !cell.checkpointed && cell.loss.is_valid();
    running_layer_ = static_cast<int64_t>(layers_.size()) - (with_loss ? 0 : 1);
    backward_from(roots, std::move(seeds), keep, captured, graph.boundary.get());
  } catch (...) {
    const int64_t at = graph.layer ? graph.layer->load(std::memory_order_relaxed) : -1;
    if (at >= 0) running_layer_ = at;
    throw;
  }

  const size_t inputs = cell.checkpointed ? cell.inputs.size() : graph.sinks.size();
  std::vector<Packet> result(inputs);
  for (size_t k = 0; k < inputs; ++k) {
    const size_t items = k < graph.sinks.size() ? graph.sinks[k].size() : 0;
    for (size_t n = 0; n < items; ++n) {
      Item item;
      const int sink = graph.sinks[k][n];
      if (sink >= 0 && !graph.boundary->gradients().empty()) {
        item.tensor = std::move(graph.boundary->gradients()[sink]);
      }
      result[k].items.push_back(std::move(item));
    }
  }
  if (!keep) {
    cell = Cell();
    cell.done = true;
  }
  return result;
}

}  // namespace gpipe::internal
