#include "gpipe/internal/stage.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/alias.h"
#include "gpipe/internal/leaving_copies.h"
#include "gpipe/internal/local_backward.h"
#include "gpipe/internal/transfer.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

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

std::vector<Packet> packet_of(at::Tensor tensor) {
  std::vector<Packet> packets(1);
  packets[0].items.emplace_back();
  packets[0].items[0].tensor = std::move(tensor);
  return packets;
}

bool any_needs_grad(const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) {
    for (const Item& item : packet.items) {
      if (item.needs_grad) return true;
    }
  }
  return false;
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
  std::vector<std::vector<at::Tensor>> tensors = attach(plan, inputs, result, read_only);
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
  RandomStreamsScope draws_scope(&draws_, plan.record ? &graph.draws() : nullptr);

  torch::nn::AnyValue value = to_any({inputs[0].kind, std::move(tensors[0])});
  tensors.clear();  // a layer's input is to be freed when the layer is done with it
  graph.begin();
  for (size_t position = 0; position < layers_.size(); ++position) {
    draws_.enter(plan.step_seed, micro_batch, layers_[position].index);
    value = run_layer(static_cast<int64_t>(position), std::move(value));
    if (keep_inputs) check_kept(inputs, "while it is checkpointed");
    read_only.check([this] { return current_layer(); });
    if (plan.record) graph.end_layer();
  }
  result.activation = from_any(std::move(value));
  result.skips.reserve(routes_.outgoing.size());
  for (const skip::Key& key : routes_.outgoing) result.skips.push_back(tracker.pop(key));
  tracker_scope.reset();
  if (plan.record) add_outputs(result);
  return result;
}

std::vector<std::vector<at::Tensor>> Stage::attach(const CellPlan& plan,
                                                   const std::vector<Packet>& inputs,
                                                   Result& result,
                                                   ReadOnlyInputs& read_only) const {
  std::vector<std::vector<at::Tensor>> tensors(inputs.size());
  // What arrived several times as the same tensor is one tensor here, too.
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 4> known;
  for (size_t k = 0; k < inputs.size(); ++k) {
    tensors[k].reserve(inputs[k].items.size());
    for (const Item& item : inputs[k].items) {
      const c10::TensorImpl* impl = item.tensor.unsafeGetTensorImpl();
      const auto twin = std::find_if(known.begin(), known.end(),
                                     [&](const auto& entry) { return entry.first == impl; });
      const bool fresh = !item.tensor.defined() || twin == known.end();
      tensors[k].push_back(fresh ? detached_alias(item.tensor) : twin->second);
      const at::Tensor& alias = tensors[k].back();
      if (fresh && item.tensor.defined()) known.emplace_back(impl, alias);
      if (fresh && item.read_only && (differentiable(plan, alias) || !device_.is_cpu())) {
        read_only.watch(alias);
      }
      result.graph.inputs().add(k, alias, fresh && plan.record && item.needs_grad);
      if (storage_of(item.tensor) == nullptr) continue;
      if (item.read_only) result.read_only.emplace_back(item.tensor.storage().getWeakStorageImpl());
      if (item.shared) result.shared.emplace_back(item.tensor.storage().getWeakStorageImpl());
    }
  }
  return tensors;
}

torch::nn::AnyValue Stage::run_layer(int64_t position, torch::nn::AnyValue value) {
  Layer& layer = layers_[position];
  running_layer_ = position;
  RunningStatisticsScope::enter_layer(layer.index);
  if (layer.skips.empty()) return layer.module.any_forward(std::move(value));
  skip::CallScope call(layer.skips);
  value = layer.module.any_forward(std::move(value));
  call.finish();
  return value;
}

void Stage::add_outputs(Result& result) const {
  // A view whose base was changed since gets its node when that is asked for. The plain model's
  // layers ask in this order, which is that of the nodes' numbers then.
  const auto make_node = [](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad()) (void)tensor.grad_fn();
  };
  for (const at::Tensor& tensor : result.activation.tensors) make_node(tensor);
  for (const at::Tensor& tensor : result.skips) make_node(tensor);
  for (int k : routes_.gradient_order) {
    if (k > 0) {
      result.graph.add_output(k, 0, result.skips[k - 1]);
      continue;
    }
    for (size_t n = 0; n < result.activation.tensors.size(); ++n) {
      result.graph.add_output(0, n, result.activation.tensors[n]);
    }
  }
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
  CellGraph graph;
  if (cell.recompute) {
    // The layers' graph is to be freed here, so the loss is cut off from it.
    for (size_t n = 0; n < outputs.tensors.size(); ++n) {
      outputs.tensors[n] = detached_alias(outputs.tensors[n]);
      graph.inputs().add(0, outputs.tensors[n], handed_over.items[n].needs_grad);
    }
  }
  graph.begin_loss(layers_.size());
  // The loss may draw random numbers, too: it counts as the layer behind the last.
  draws_.enter(plan.step_seed, micro_batch, layers_.empty() ? 0 : layers_.back().index + 1);
  RandomStreamsScope draws_scope(&draws_, &graph.draws());
  running_layer_ = static_cast<int64_t>(layers_.size());
  LossResult scalar = loss(micro_batch, outputs.tensors);
  graph.add_output(0, 0, scalar.loss);
  graph.targets() = std::move(scalar.targets);
  cell.seed = std::move(scalar.seed);
  if (cell.recompute) {
    cell.loss = std::make_unique<CellGraph>(std::move(graph));
  } else {
    cell.graph.append_loss(std::move(graph));
  }
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
  if (recomputes && any_needs_grad(outputs)) {
    cell.recompute = Cell::Recompute{std::move(inputs), fingerprints_of(result)};
    result.graph = CellGraph();
  } else {
    inputs.clear();
    cell.graph = std::move(result.graph);
  }
  if (loss) run_loss(plan, micro_batch, loss, std::move(result.activation), outputs[0], cell);
  return outputs;
}

CellGraph Stage::recompute(const CellPlan& plan, int64_t micro_batch, Cell::Recompute& kept,
                           const BackwardTask& task) {
  check_kept(kept.inputs, "between its forward and its recompute");
  plan.model.check_parameters(index_);
  std::vector<Packet> copy;
  if (task.keep) copy = kept.inputs;
  CallerStateScope state(*plan.forward_state);
  AutocastCacheOff no_cache;
  InterceptionScope mode;
  c10::AutoGradMode grad_mode(true);
  CheckpointPhaseScope phase(CheckpointPhase::kRecomputing);
  RunningStatisticsScope statistics(RunningStatistics::kKeep, *plan.tracked, nullptr, micro_batch);
  Result result = run(plan, micro_batch, task.keep ? copy : kept.inputs, /*keep_inputs=*/false);
  check_recomputed(fingerprints_of(result), kept.fingerprints, task);
  return std::move(result.graph);
}

void Stage::check_recomputed(const std::vector<Fingerprint>& now,
                             const std::vector<Fingerprint>& in_forward, const BackwardTask& task) {
  bool same = now.size() == in_forward.size();
  at::Tensor differs;
  for (size_t k = 0; same && k < now.size(); ++k) {
    same = now[k].matches(in_forward[k]);
    const at::Tensor differs_here = now[k].differs(in_forward[k]);
    if (!differs_here.defined()) continue;
    // A layer may have moved what it returned to another device.
    const bool first = !differs.defined() || differs.device() != differs_here.device();
    if (first && differs.defined()) task.late_checks->add(index_, differs, *task.transfers);
    differs = first ? differs_here : differs.logical_or(differs_here);
  }
  if (differs.defined()) task.late_checks->add(index_, differs, *task.transfers);
  running_layer_ = -1;
  if (!same) refuse_recompute(index_, "");
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

// One backward of one cell, for what its graph meets on its way: leaves, and others' graphs.
struct Stage::Backward {
  Stage& stage;
  const CellPlan& plan;
  const int64_t micro_batch;
  const BackwardTask& task;
  Roots roots;        // what others have left for leaves that this stage accumulates
  LeafSums captured;  // what the caller asked for; others' terms come first

  // The functions capture one pointer each and need no memory of their own.
  GraphTask graph_task() {
    GraphTask result;
    result.part = task.part;
    result.keep = task.keep;
    result.draws = {&stage.draws_, plan.step_seed, micro_batch, stage.layers_.front().index};
    result.sum_of = [this](const std::shared_ptr<Node>& accumulator, const at::Tensor& leaf) {
      return sum_of(accumulator, leaf);
    };
    result.enter_foreign = [this](const Node& node, uint64_t thread) {
      enter_foreign(node, thread);
    };
    result.target_gradients = task.target_gradients;
    return result;
  }

  void take(LeafSums& sums) {
    sums.take(stage.index_, [this](LeafSums::Entry entry) {
      if (task.captured != nullptr) {
        *captured.sum_of(entry.accumulator, stage.index_) = std::move(entry.sum);
      } else {
        roots.add(Edge(std::move(entry.accumulator), 0), std::move(entry.sum));
      }
    });
  }

  // Through the graph of a loss that hangs on detached outputs. Returns their gradients.
  std::vector<Packet> run_loss(std::vector<Packet> gradients, CellGraph& loss) {
    LeafSums leaves;
    GraphTask of_loss = graph_task();
    of_loss.part = BackwardPart::kWhole;
    // What the layers use, too, gets its gradient together with theirs.
    of_loss.sum_of = [this, &leaves](const std::shared_ptr<Node>& accumulator, const at::Tensor&) {
      return leaves.sum_of(accumulator, stage.index_);
    };
    gradients =
        loss.backward(std::move(gradients), Roots(), std::move(of_loss), stage.running_layer_);
    take(leaves);
    return gradients;
  }

  // Leaves' gradients that the caller named, terms of other stages included, are captured.
  at::Tensor* sum_of(const std::shared_ptr<Node>& accumulator, const at::Tensor& leaf) {
    if (task.captured != nullptr) {
      const auto& leaves = task.captured->leaves;
      if (std::find(leaves.begin(), leaves.end(), accumulator.get()) == leaves.end()) {
        TORCH_CHECK(!task.captured->asked.contains(accumulator.get()), stage.current_layer(),
                    " uses a tensor that autograd::grad, or a backward with a list of inputs, was "
                    "asked for, but that no layer has registered; register it "
                    "(register_parameter), or use backward() without a list");
        return LocalBackwardOptions::discarded();
      }
    }
    const int64_t owner = stage.owner_of(plan, task, leaf);
    if (owner != stage.index_) return task.leaf_sums->sum_of(accumulator, owner);
    return task.captured == nullptr ? nullptr : captured.sum_of(accumulator, stage.index_);
  }

  void enter_foreign(const Node& node, uint64_t thread) const {
    // Made by the pipeline: on a worker, or during this call on its thread.
    const bool hidden = task.on_caller
                            ? node.thread_id() == plan.thread && node.sequence_nr() >= plan.begin
                            : node.thread_id() == thread;
    TORCH_CHECK(!hidden, stage.current_layer(),
                " uses a tensor of another micro-batch, or of a forward that is recomputed, that "
                "came by a way that the pipeline does not see (a member of a layer, say); hand it "
                "on as one of the values between layers, stash and pop it (skip/skippable.h), "
                "detach() it, or use Checkpoint::kNever for an auxiliary loss within a partition");
    task.foreign->enter(node, stage.index_);
  }

  void hand_captured() {
    captured.take(stage.index_, [this](LeafSums::Entry entry) {
      const auto& leaves = task.captured->leaves;
      const auto place = std::find(leaves.begin(), leaves.end(), entry.accumulator.get());
      at::Tensor& sum = task.captured->sums[place - leaves.begin()];
      c10::NoGradGuard no_grad;
      sum = sum.defined() ? sum + entry.sum : entry.sum;
    });
  }
};

std::vector<Packet> Stage::backward(const CellPlan& plan, int64_t micro_batch,
                                    std::vector<Packet> gradients, Cell& cell,
                                    const BackwardTask& task) {
  for (Packet& packet : gradients) arrive(packet, device_);
  running_layer_ = -1;
  RandomStreamsScope draws_scope(&draws_, nullptr);
  std::optional<RandomStreamsOfAutogradScope> draws_of_autograd;
  if (!device_.is_cpu()) draws_of_autograd.emplace(&draws_);

  Backward backward{*this, plan, micro_batch, task, {}, {}};
  if (task.part != BackwardPart::kWeights) {
    backward.take(*task.leaf_sums);
    if (cell.seed.defined()) gradients = packet_of(cell.seed);
    if (cell.loss) gradients = backward.run_loss(std::move(gradients), *cell.loss);
    // Nothing arrived: a branch that the loss does not use. Its recompute would be for nothing.
    if (cell.recompute && any_defined(gradients)) {
      cell.graph = recompute(plan, micro_batch, *cell.recompute, task);
    }
  }
  std::vector<Packet> result = cell.graph.backward(std::move(gradients), std::move(backward.roots),
                                                   backward.graph_task(), running_layer_);
  backward.hand_captured();
  if (!task.keep) {
    cell.recompute.reset();
    cell.loss.reset();
    cell.seed.reset();
  } else if (cell.recompute) {
    cell.graph = CellGraph();  // made again next time
  }
  return result;
}

}  // namespace gpipe::internal
