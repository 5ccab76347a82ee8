#include "gpipe/internal/stage.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/alias.h"
#include "gpipe/internal/leaving_copies.h"
#include "gpipe/internal/read_only_inputs.h"
#include "gpipe/internal/transfer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Whether a gradient may ever flow through the tensor in this run.
bool differentiable(const CellPlan& plan, const at::Tensor& tensor) {
  return plan.record && tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

bool checkpoints(const CellPlan& plan, int64_t stage, int64_t micro_batch) {
  const Checkpoint mode = plan.checkpoints[stage];
  // What a backward that follows at once would recompute is there still.
  return mode == Checkpoint::kAlways ||
         (mode == Checkpoint::kExceptLast && !(*plan.follows_at_once)[stage][micro_batch]);
}

Edge edge_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  return torch::autograd::impl::gradient_edge(tensor);
}

// The gradients of what the graph's inputs stand for, packet by packet.
Packet gradients_of(const c10::SmallVector<int, 2>& sinks, const std::shared_ptr<Boundary>& from) {
  Packet packet;
  for (int sink : sinks) {
    Item item;
    if (sink >= 0 && !from->gradients().empty()) {
      item.tensor = std::move(from->gradients()[sink]);
    }
    packet.items.push_back(std::move(item));
  }
  return packet;
}

bool any_defined(const std::vector<Packet>& gradients) {
  for (const Packet& packet : gradients) {
    for (const Item& item : packet.items) {
      if (item.tensor.defined()) return true;
    }
  }
  return false;
}

}  // namespace

Stage::Stage(int64_t index, c10::Device device, std::vector<Layer> layers, StageRoutes routes)
    : index_(index), device_(device), layers_(std::move(layers)), routes_(std::move(routes)) {}

std::string Stage::current_layer() const {
  if (running_layer_ < 0) return "stage " + std::to_string(index_);
  if (running_layer_ == static_cast<int64_t>(layers_.size())) return "the loss function";
  const Layer& layer = layers_[running_layer_];
  return "layer " + std::to_string(layer.index) + " ('" + layer.name + "')";
}

Stage::Result Stage::run(const CellPlan& plan, int64_t micro_batch, std::vector<Packet>& inputs,
                         bool keep_inputs) {
  Result result;
  CellGraph& graph = result.graph;
  ReadOnlyInputs read_only;
  std::vector<std::vector<at::Tensor>> tensors(inputs.size());
  graph.sinks.resize(inputs.size());
  // What arrived several times as the same tensor is one tensor here, too.
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 4> known;
  for (size_t k = 0; k < inputs.size(); ++k) {
    tensors[k].reserve(inputs[k].items.size());
    for (Item& item : inputs[k].items) {
      int sink = -1;
      const c10::TensorImpl* impl = item.tensor.unsafeGetTensorImpl();
      const auto twin = std::find_if(known.begin(), known.end(),
                                     [&](const auto& entry) { return entry.first == impl; });
      if (item.tensor.defined() && twin != known.end()) {
        tensors[k].push_back(twin->second);
      } else {
        tensors[k].push_back(detached_alias(item.tensor));
        const at::Tensor& alias = tensors[k].back();
        if (item.tensor.defined()) known.emplace_back(impl, alias);
        if (item.read_only && (differentiable(plan, alias) || !device_.is_cpu())) {
          read_only.watch(alias);
        }
        if (plan.record && item.needs_grad) {
          if (!graph.boundary) graph.boundary = std::make_shared<Boundary>();
          sink = static_cast<int>(graph.boundary->attach(alias));
        }
      }
      if (item.read_only && storage_of(item.tensor) != nullptr) {
        result.read_only.emplace_back(item.tensor.storage().getWeakStorageImpl());
      }
      if (item.shared && storage_of(item.tensor) != nullptr) {
        result.shared.emplace_back(item.tensor.storage().getWeakStorageImpl());
      }
      graph.sinks[k].push_back(sink);
    }
  }
  known.clear();
  if (!keep_inputs) {
    for (Packet& packet : inputs) {
      for (Item& item : packet.items) item.tensor = at::Tensor();
    }
  }

  skip::Tracker tracker;
  for (size_t k = 0; k < routes_.incoming.size(); ++k) {
    tracker.stash(routes_.incoming[k], std::move(tensors[k + 1][0]));
  }
  std::optional<skip::TrackerScope> tracker_scope(tracker);
  DrawsScope draws_scope(&draws_, plan.record ? &graph.draws : nullptr);

  torch::nn::AnyValue value = to_any({inputs[0].kind, std::move(tensors[0])});
  tensors.clear();  // a layer's input is to be freed when the layer is done with it
  graph.thread = at::RecordFunction::currentThreadId();
  graph.begin = at::sequence_number::peek();
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
    if (keep_inputs) check_kept(inputs, "while it is checkpointed");
    read_only.check([this] { return current_layer(); });
    if (plan.record) graph.layer_ends.push_back(at::sequence_number::peek());
  }
  result.activation = from_any(std::move(value));
  result.skips.reserve(routes_.outgoing.size());
  for (const skip::Key& key : routes_.outgoing) result.skips.push_back(tracker.pop(key));
  tracker_scope.reset();

  if (plan.record) {
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

void Stage::check_arrived(const CellPlan& plan, std::vector<Packet>& inputs) const {
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (Item& item : inputs[k].items) {
      const int64_t version = version_of(item.tensor);
      if (version == item.version) continue;
      // Without a gradient, all that counts is the value, which is that of the plain model where
      // nothing was copied.
      TORCH_CHECK(!differentiable(plan, item.tensor) && device_.is_cpu(),
                  k == 0 ? "an input" : "the skip " + routes_.incoming[k - 1].to_text(),
                  " of stage ", index_,
                  " was changed in place by a layer of another stage after it had been handed over "
                  "(its memory went several ways); the gradients would miss the change. Hand on a "
                  "clone(), make that layer not in-place, or move the cut");
      item.version = version;
    }
  }
}

void Stage::check_kept(const std::vector<Packet>& inputs, const char* when) const {
  for (const Packet& packet : inputs) {
    for (const Item& item : packet.items) {
      TORCH_CHECK(version_of(item.tensor) == item.version, current_layer(),
                  " changed an input of stage ", index_, " in place ", when,
                  "; its recompute would start from the changed values and give wrong gradients. "
                  "Make the layer not in-place, put it behind another layer of its partition by "
                  "moving the cut, or use Checkpoint::kNever");
    }
  }
}

// The tensor as it leaves over its own memory.
at::Tensor Stage::leaving_alias(const CellPlan& plan, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !plan.record || !tensor.requires_grad()) return detached_alias(tensor);
  const int64_t version = version_of(tensor);
  const auto [entry, fresh] =
      handed_over_.try_emplace(storage, HandedOver{tensor.storage().getWeakStorageImpl(), version});
  TORCH_CHECK(fresh || entry->second.version == version, current_layer(),
              " returned a tensor in the memory of one that it had returned for an earlier "
              "micro-batch, and has changed since; the stages behind would see the new values. "
              "Return a new tensor, or a clone()");
  return detached_alias(tensor);
}

std::vector<Packet> Stage::hand_over(const CellPlan& plan, const Result& result) {
  struct Leaving {
    const at::Tensor* tensor;
    int64_t target;
    Item* item;
  };
  const LeavingCopies copies(plan.record, plan.model, result.activation.tensors, result.skips,
                             result.shared);
  c10::SmallVector<Leaving, 4> leaving;
  std::vector<Packet> packets(1 + result.skips.size());
  packets[0].kind = result.activation.kind;
  packets[0].items.resize(result.activation.tensors.size());
  for (size_t n = 0; n < result.activation.tensors.size(); ++n) {
    leaving.push_back({&result.activation.tensors[n], index_ + 1, &packets[0].items[n]});
  }
  for (size_t k = 0; k < result.skips.size(); ++k) {
    packets[k + 1].items.resize(1);
    leaving.push_back({&result.skips[k], routes_.outgoing_targets[k], &packets[k + 1].items[0]});
  }
  for (size_t a = 0; a < leaving.size(); ++a) {
    const at::Tensor& tensor = *leaving[a].tensor;
    Item& item = *leaving[a].item;
    item.needs_grad = plan.record && tensor.defined() && tensor.requires_grad();
    const c10::StorageImpl* storage = storage_of(tensor);
    item.read_only = storage != nullptr && plan.model.owns(storage);
    item.read_only = item.read_only || contains(result.read_only, storage);
    item.shared = storage != nullptr && contains(result.shared, storage);
    bool twin = false;
    for (size_t b = 0; b < a; ++b) {
      const at::Tensor& other = *leaving[b].tensor;
      Item& other_item = *leaving[b].item;
      if (tensor.is_same(other)) {
        twin = true;
        item.tensor = other_item.tensor;
        // In one stage they are one tensor again, unless each is copied to another device.
        if (leaving[a].target == leaving[b].target && device_.is_cpu()) continue;
      } else if (storage == nullptr || storage != storage_of(other) ||
                 !may_overlap(tensor, other)) {
        continue;
      }
      item.shared = other_item.shared = true;
      // Even where neither wants a gradient yet: a parameter that comes in by a change in place
      // would want one through both.
      if (!differentiable(plan, tensor) && device_.is_cpu()) continue;
      // Whoever comes first must leave it alone.
      if (leaving[a].target <= leaving[b].target) item.read_only = true;
      if (leaving[b].target <= leaving[a].target) other_item.read_only = true;
    }
    if (!twin) item.tensor = copies.of(tensor);
    if (!twin && !item.tensor.defined()) item.tensor = leaving_alias(plan, tensor);
    item.version = version_of(item.tensor);
  }
  return packets;
}

void Stage::run_loss(const CellPlan& plan, int64_t micro_batch, const CellLoss& loss, Value outputs,
                     const Packet& handed_over, Cell& cell) {
  if (cell.checkpointed) {
    for (size_t n = 0; n < outputs.tensors.size(); ++n) {
      outputs.tensors[n] = detached_alias(outputs.tensors[n]);
      int sink = -1;
      if (handed_over.items[n].needs_grad) {
        if (!cell.loss.outputs) cell.loss.outputs = std::make_shared<Boundary>();
        sink = static_cast<int>(cell.loss.outputs->attach(outputs.tensors[n]));
      }
      cell.loss.sinks.push_back(sink);
    }
  }
  // The loss may draw random numbers, too: it counts as the layer behind the last.
  cell.loss.begin = at::sequence_number::peek();
  draws_.enter(plan.step_seed, micro_batch, layers_.empty() ? 0 : layers_.back().index + 1);
  DrawsScope draws_scope(&draws_, cell.checkpointed ? &cell.loss.draws : &cell.graph.draws);
  running_layer_ = static_cast<int64_t>(layers_.size());
  LossResult scalar = loss(micro_batch, outputs.tensors);
  cell.loss.edge = edge_of(scalar.loss);
  cell.loss.seed = std::move(scalar.seed);
  cell.loss.targets = std::move(scalar.targets);
  // The outputs' own edges are no roots any more; the loss is the only one.
  if (!cell.checkpointed && !cell.graph.outputs.empty()) cell.graph.outputs[0].clear();
}

std::vector<Packet> Stage::forward(const CellPlan& plan, int64_t micro_batch,
                                   std::vector<Packet> inputs, Cell& cell, const CellLoss& loss,
                                   StatisticsLog* statistics) {
  for (Packet& packet : inputs) arrive(packet, device_);
  running_layer_ = -1;
  check_arrived(plan, inputs);
  cell = Cell();
  if (plan.record) plan.model.check_parameters(index_);
  const bool recomputes = plan.record && checkpoints(plan, index_, micro_batch);
  Result result;
  {
    RunningStatisticsScope statistics_scope(
        plan.defer_batch_norm ? RunningStatistics::kDefer : RunningStatistics::kUpdate,
        *plan.tracked, statistics, micro_batch);
    // A checkpointed cell records, too, and lets go of the graph at once: only so does it run
    // exactly as the plain model would, and tell which outputs want a gradient.
    CheckpointPhaseScope phase(recomputes ? CheckpointPhase::kCheckpointing
                                          : CheckpointPhase::kNone);
    result = run(plan, micro_batch, inputs, /*keep_inputs=*/recomputes);
  }
  std::vector<Packet> outputs = hand_over(plan, result);
  for (const Packet& packet : outputs) {
    for (const Item& item : packet.items) {
      cell.checkpointed = cell.checkpointed || (recomputes && item.needs_grad);
    }
  }
  if (cell.checkpointed) {
    cell.fingerprints = fingerprints_of(result);
    cell.inputs = std::move(inputs);
    result.graph = CellGraph();
    if (!loss) {
      result = Result();
    } else {
      for (at::Tensor& tensor : result.activation.tensors) tensor = detached_alias(tensor);
    }
  } else {
    inputs.clear();
    cell.graph = std::move(result.graph);
  }
  if (loss) {
    run_loss(plan, micro_batch, loss, std::move(result.activation), outputs[0], cell);
  }
  return outputs;
}

CellGraph Stage::recompute(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                           const BackwardTask& task) {
  check_kept(cell.inputs, "between its forward and its recompute");
  plan.model.check_parameters(index_);
  std::vector<Packet> copy;
  if (task.keep) copy = cell.inputs;
  CallerStateScope state(*plan.forward_state);
  AutocastCacheOff no_cache;
  OperatorModeScope mode;
  c10::AutoGradMode grad_mode(true);
  CheckpointPhaseScope phase(CheckpointPhase::kRecomputing);
  RunningStatisticsScope statistics(RunningStatistics::kKeep, *plan.tracked, nullptr, micro_batch);
  Result result = run(plan, micro_batch, task.keep ? copy : cell.inputs, /*keep_inputs=*/false);
  const std::vector<Fingerprint> fingerprints = fingerprints_of(result);
  bool same = fingerprints.size() == cell.fingerprints.size();
  at::Tensor differs;
  for (size_t k = 0; same && k < fingerprints.size(); ++k) {
    same = fingerprints[k].matches(cell.fingerprints[k]);
    const at::Tensor differs_here = fingerprints[k].differs(cell.fingerprints[k]);
    if (!differs_here.defined()) continue;
    // A layer may have moved what it returned to another device.
    const bool first = !differs.defined() || differs.device() != differs_here.device();
    if (first && differs.defined()) task.late_checks->add(index_, differs, *task.transfers);
    differs = first ? differs_here : differs.logical_or(differs_here);
  }
  if (differs.defined()) task.late_checks->add(index_, differs, *task.transfers);
  running_layer_ = -1;
  if (!same) refuse_recompute(index_, "");
  return std::move(result.graph);
}

std::vector<Fingerprint> Stage::fingerprints_of(const Result& result) const {
  std::vector<Fingerprint> fingerprints;
  auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) fingerprints.push_back(Fingerprint::of(tensor));
  };
  for (const at::Tensor& tensor : result.activation.tensors) add(tensor);
  for (const at::Tensor& tensor : result.skips) add(tensor);
  return fingerprints;
}

int64_t Stage::layer_of(const CellGraph& graph, uint64_t sequence_nr) const {
  if (sequence_nr < graph.begin) return -1;
  size_t position = 0;
  while (position < graph.layer_ends.size() && sequence_nr >= graph.layer_ends[position]) {
    ++position;
  }
  return static_cast<int64_t>(position);
}

int64_t Stage::owner_of(const CellPlan& plan, const BackwardTask& task,
                        const at::Tensor& leaf) const {
  if (leaf.device() != device_) return index_;
  const ModelState::Parameter* parameter = plan.model.find(leaf);
  const int64_t owner =
      parameter == nullptr ? (*task.first_on_device)[index_] : parameter->stages.front();
  TORCH_CHECK(owner <= index_, "stage ", index_, " uses the parameter '",
              parameter == nullptr ? "" : parameter->name, "' of stage ", owner,
              " without having registered it; register it in the first layer that uses it "
              "(register_parameter) and let the later one use it without, so that the order of its "
              "gradients is fixed and parameters() lists it once");
  return owner;
}

std::function<at::Tensor*(const std::shared_ptr<Node>&, const at::Tensor&)> Stage::sum_of(
    const CellPlan& plan, const BackwardTask& task, LeafSums& captured) {
  return [this, &plan, &task, &captured](const std::shared_ptr<Node>& accumulator,
                                         const at::Tensor& leaf) -> at::Tensor* {
    if (task.captured != nullptr) {
      const auto& leaves = task.captured->leaves;
      if (std::find(leaves.begin(), leaves.end(), accumulator.get()) == leaves.end()) {
        TORCH_CHECK(!task.captured->asked.contains(accumulator.get()), current_layer(),
                    " uses a tensor that autograd::grad, or a backward with a list of inputs, was "
                    "asked for, but that no layer has registered; register it "
                    "(register_parameter), or use backward() without a list");
        return LocalBackwardOptions::discarded();
      }
    }
    const int64_t owner = owner_of(plan, task, leaf);
    if (owner != index_) return task.leaf_sums->sum_of(accumulator, owner);
    return task.captured == nullptr ? nullptr : captured.sum_of(accumulator, index_);
  };
}

LocalBackwardOptions Stage::options_for(const CellPlan& plan, int64_t micro_batch,
                                        const BackwardTask& task, const CellGraph& graph,
                                        uint64_t& running) {
  LocalBackwardOptions options;
  options.keep_graph = task.keep;
  options.running = &running;
  options.own = LocalBackwardOptions::Range{graph.thread, graph.begin};
  options.enter_foreign = [this, &plan, &task, &graph](const Node& node) {
    // Made by the pipeline: on a worker, or during this call on its thread.
    const bool hidden = task.on_caller
                            ? node.thread_id() == plan.thread && node.sequence_nr() >= plan.begin
                            : node.thread_id() == graph.thread;
    TORCH_CHECK(!hidden, current_layer(),
                " uses a tensor of another micro-batch, or of a forward that is recomputed, that "
                "came by a way that the pipeline does not see (a member of a layer, say); hand it "
                "on as one of the values between layers, stash and pop it (skip/skippable.h), "
                "detach() it, or use Checkpoint::kNever for an auxiliary loss within a partition");
    task.foreign->enter(node, index_);
  };
  options.before_users_code = [this, &plan, &graph, micro_batch, leaves = uint64_t{0}](
                                  const Node& node, uint64_t next) mutable {
    const uint64_t number = node.sequence_nr();
    if (is_custom_function(node)) {
      for (const DrawRecord& record : graph.draws) {
        // The function's forward drew after its node was made and before the next one.
        if (record.sequence_nr <= number || record.sequence_nr > next) continue;
        draws_.repeat(plan.step_seed, micro_batch, record);
        return;
      }
    }
    const int64_t position = std::max<int64_t>(layer_of(graph, number), 0);
    const int64_t last = static_cast<int64_t>(layers_.size()) - 1;
    const int64_t layer = position <= last ? layers_[position].index : layers_[last].index + 1;
    const uint64_t start =
        position == 0 ? graph.begin : std::max(graph.begin, graph.layer_ends[position - 1]);
    // Accumulators have no number among the nodes; they run in one order in every schedule.
    const bool is_leaf = number == std::numeric_limits<uint64_t>::max();
    draws_.enter_backward(plan.step_seed, micro_batch, layer,
                          is_leaf          ? ~leaves++
                          : number < start ? 0
                                           : number - start + 1);
  };
  return options;
}

Packet Stage::backward_loss(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                            const BackwardTask& task, LeafSums& leaves) {
  running_layer_ = static_cast<int64_t>(layers_.size());
  uint64_t running = 0;
  CellGraph graph;  // of the loss alone: whatever runs belongs to what follows the layers
  graph.thread = at::RecordFunction::currentThreadId();
  graph.begin = cell.loss.begin;
  graph.draws = std::move(cell.loss.draws);
  graph.layer_ends.assign(layers_.size(), 0);
  LocalBackwardOptions options = options_for(plan, micro_batch, task, graph, running);
  options.boundaries = {cell.loss.outputs.get(), cell.loss.targets.get()};
  // What the layers use, too, gets its gradient together with theirs.
  options.sum_of = [&](const std::shared_ptr<Node>& accumulator, const at::Tensor&) {
    return leaves.sum_of(accumulator, index_);
  };
  variable_list seeds = {cell.loss.seed};
  run_local_backward({cell.loss.edge}, seeds, options);
  cell.loss.draws = std::move(graph.draws);
  return gradients_of(cell.loss.sinks, cell.loss.outputs);
}

std::vector<Packet> Stage::backward(const CellPlan& plan, int64_t micro_batch,
                                    std::vector<Packet> gradients, Cell& cell,
                                    const BackwardTask& task) {
  for (Packet& packet : gradients) arrive(packet, device_);
  running_layer_ = -1;
  DrawsScope draws_scope(&draws_, nullptr);
  std::optional<DrawsOfAutogradScope> draws_of_autograd;
  if (!device_.is_cpu()) draws_of_autograd.emplace(&draws_);
  if (task.part == BackwardPart::kWeights) return backward_weights(plan, micro_batch, cell, task);

  edge_list roots;
  variable_list seeds;
  auto add_root = [&](const Edge& edge, at::Tensor gradient) {
    roots.push_back(edge);
    seeds.push_back(std::move(gradient));
  };
  LeafSums captured;
  auto add_leaf = [&](LeafSums::Entry entry) {
    if (task.captured != nullptr) {
      *captured.sum_of(entry.accumulator, index_) = std::move(entry.sum);
    } else {
      add_root(Edge(std::move(entry.accumulator), 0), std::move(entry.sum));
    }
  };
  task.leaf_sums->take(index_, add_leaf);

  const bool counts = cell.loss.edge.is_valid() && cell.loss.seed.defined();
  if (counts && cell.checkpointed) {
    LeafSums leaves;
    gradients.resize(1);
    gradients[0] = backward_loss(plan, micro_batch, cell, task, leaves);
    leaves.take(index_, add_leaf);
  } else if (counts) {
    add_root(cell.loss.edge, cell.loss.seed);
  }

  CellGraph recomputed;
  // Nothing arrived: a branch that the loss does not use. Its recompute would be for nothing.
  if (cell.checkpointed && any_defined(gradients)) {
    recomputed = recompute(plan, micro_batch, cell, task);
  }
  CellGraph& graph = cell.checkpointed ? recomputed : cell.graph;
  for (int k : routes_.gradient_order) {
    if (static_cast<size_t>(k) >= graph.outputs.size() ||
        static_cast<size_t>(k) >= gradients.size()) {
      continue;
    }
    for (size_t n = 0; n < graph.outputs[k].size() && n < gradients[k].items.size(); ++n) {
      at::Tensor& gradient = gradients[k].items[n].tensor;
      const Edge& edge = graph.outputs[k][n];
      if (!edge.is_valid() || !gradient.defined()) continue;
      // A layer may have moved what it returned to another device.
      const auto& wanted = edge.function->input_metadata(edge.input_nr);
      if (!wanted.was_default_constructed() && wanted.device() != gradient.device()) {
        c10::NoGradGuard no_grad;
        gradient = gradient.to(wanted.device());
      }
      add_root(edge, std::move(gradient));
    }
  }
  gradients.clear();

  uint64_t running = 0;
  LocalBackwardOptions options = options_for(plan, micro_batch, task, graph, running);
  options.boundaries = {graph.boundary.get(), cell.loss.targets.get()};
  options.sum_of = sum_of(plan, task, captured);
  const bool with_loss = counts && !cell.checkpointed;
  WeightBackward weights;
  run_attributed(graph, with_loss, running, [&] {
    if (task.part == BackwardPart::kInputs) {
      weights = run_input_backward(roots, seeds, options);
    } else {
      run_local_backward(roots, seeds, options);
    }
  });
  captured.take(index_, [&](LeafSums::Entry entry) {
    const auto& leaves = task.captured->leaves;
    const auto place = std::find(leaves.begin(), leaves.end(), entry.accumulator.get());
    at::Tensor& sum = task.captured->sums[place - leaves.begin()];
    c10::NoGradGuard no_grad;
    sum = sum.defined() ? sum + entry.sum : entry.sum;
  });

  const size_t inputs = cell.checkpointed ? cell.inputs.size() : graph.sinks.size();
  std::vector<Packet> result(inputs);
  for (size_t k = 0; k < graph.sinks.size(); ++k) {
    result[k] = gradients_of(graph.sinks[k], graph.boundary);
    for (Item& item : result[k].items) {
      // A stage before may change what it is given (a hook does, perhaps), and this half is not
      // over: see docs/design/pipeline.md on memory.
      if (storage_of(item.tensor) == nullptr || !weights.holds(storage_of(item.tensor))) continue;
      item.tensor = copy_in_layout(item.tensor);
    }
  }
  if (!task.keep) {
    Cell rest;
    rest.loss.targets = std::move(cell.loss.targets);
    if (!weights.empty()) {
      rest.weights = std::move(weights);
      rest.with_loss = with_loss;
      rest.graph = std::move(graph);
      rest.graph.boundary.reset();
      rest.graph.outputs.clear();
    }
    cell = std::move(rest);
  }
  return result;
}

std::vector<Packet> Stage::backward_weights(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                                            const BackwardTask& task) {
  uint64_t running = 0;
  LocalBackwardOptions options = options_for(plan, micro_batch, task, cell.graph, running);
  LeafSums none;  // others' leaves have had theirs, and nothing is captured
  options.sum_of = sum_of(plan, task, none);
  run_attributed(cell.graph, cell.with_loss, running, [&] { cell.weights.run(options); });
  cell = Cell();
  return {};
}

void Stage::run_attributed(const CellGraph& graph, bool with_loss, const uint64_t& running,
                           const std::function<void()>& backward) {
  const int64_t last = static_cast<int64_t>(layers_.size()) - 1;
  running_layer_ = last + (with_loss ? 1 : 0);
  try {
    backward();
  } catch (...) {
    const int64_t position = running == 0 ? -1 : layer_of(graph, running);
    if (position <= running_layer_) running_layer_ = position;
    throw;
  }
}

}  // namespace gpipe::internal
