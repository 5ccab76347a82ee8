// The backward half of Stage.
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/foreign_nodes.h"
#include "gpipe/internal/cell/unregistered_leaf.h"
#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/offload/stage_offloads.h"
#include "gpipe/internal/stage/group_scope.h"
#include "gpipe/internal/stage/stage.h"
#include "gpipe/internal/tensors/transfer.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

std::vector<Packet> packet_of(at::Tensor tensor) {
  std::vector<Packet> packets(1);
  packets[0].items.emplace_back();
  packets[0].items[0].tensor = std::move(tensor);
  return packets;
}

bool any_defined(const std::vector<Packet>& gradients) {
  for (const Packet& packet : gradients) {
    for (const Item& item : packet.items) {
      if (item.tensor.defined()) return true;
    }
  }
  return false;
}

// Throws LibTorch's error for a tensor that was changed since a graph has saved it, and says that
// it may be a buffer of the layer. Throws all other errors as they are. `waited`: whether the graph
// had waited, as after the first half of a split backward or after an early recompute.
[[noreturn]] void rethrow_changed(const Layer& layer, bool waited) {
  try {
    throw;
  } catch (const c10::Error& error) {
    std::string names;
    for (const auto& item : layer.module.ptr()->named_buffers()) {
      names += (names.empty() ? "" : ", ") + text::in_quotes(layer.name + "." + item.key());
    }
    const std::string what = error.what_without_backtrace();
    if (names.empty() || typeid(error) != typeid(c10::Error) ||
        what.find("modified by an inplace operation") == std::string::npos) {
      throw;
    }
    c10::Error longer(error);  // the user may keep the error itself
    longer.add_context(
        "the tensor may be a buffer of this layer (" + names +
        ") that another micro-batch's forward has changed since: let the layer compute with a "
        "clone() of it, or use Checkpoint::kAlways for this partition" +
        (waited ? " and a schedule with whole backwards, such as 1f1b" : ""));
    throw c10::Error(std::move(longer));
  }
}

}  // namespace

int64_t Stage::owner_of(const RunContext& run, const at::Tensor& leaf,
                        const ModelState::Parameter* parameter) const {
  if (leaf.device() != device_) return index_;
  const int64_t owner =
      parameter == nullptr ? run.first_on_device[index_] : parameter->stages.front();
  TORCH_CHECK(owner <= index_, "stage ", index_, " uses the parameter ",
              text::in_quotes(parameter == nullptr ? "" : parameter->name), " of stage ", owner,
              " without having registered it; register it in the first layer that uses it "
              "(register_parameter) and let the later one use it without, so that the order of its "
              "gradients is fixed and parameters() lists it once");
  return owner;
}

// One backward of one cell. It decides about the leaves and the foreign graphs that its walks
// reach.
struct Stage::Backward final : public CellGraph::Walk {
  Stage& stage;
  const RunContext& run;
  const int64_t micro_batch;
  const BackwardTask& task;
  // Terms that this walk does not compute (of other stages, or of a detached loss), for leaves that
  // this stage accumulates.
  Roots roots;
  LeafSums requested;  // gradients that the caller asked for; terms as in `roots` come first
  std::vector<const Node*> sent;    // accumulators of the leaves in `roots`
  std::optional<LeafSums> of_loss;  // while the walk is in the graph of a loss alone

  Backward(Stage& stage, const RunContext& run, int64_t micro_batch, const BackwardTask& task)
      : Walk({&stage.random_streams_, run.plan.step_seed, run.plan.number_of(micro_batch),
              stage.layers_.front().index, &run.plan.model}),
        stage(stage),
        run(run),
        micro_batch(micro_batch),
        task(task) {
    settings.keep_graph = run.keep_graph;
    settings.check_finite = run.check_finite;
    target_gradients = task.target_gradients;
  }

  // Notes a leaf that no layer has registered. It excuses leaves that the loss function captures,
  // which are the caller's, and terms that other stages sent, which come from no layer here.
  void notice_unregistered(const Node* accumulator, const at::Tensor& leaf) const {
    if (run.unregistered == nullptr || run.unregistered->noted()) return;
    // If no layer has led to the leaf (but the loss, say), the leaf is excused for the whole run,
    // because other stages, and weight halves, get its terms without knowing where they come from.
    if (!stage.is_layer(layer())) return run.unregistered->excuse(accumulator);
    if (std::find(sent.begin(), sent.end(), accumulator) != sent.end()) return;
    run.unregistered->note(stage.name_of(layer()), accumulator, leaf);
  }

  void take(LeafSums& sums) {
    sums.take(stage.index_, [this](LeafSums::Entry entry) {
      if (run.requested != nullptr) {
        *requested.sum_of(entry.accumulator, stage.index_) = std::move(entry.sum);
      } else {
        sent.push_back(entry.accumulator.get());
        roots.add(Edge(std::move(entry.accumulator), 0), std::move(entry.sum));
      }
    });
  }

  // Runs the backward of a loss that starts at detached outputs, and returns their gradients.
  std::vector<Packet> run_loss(std::vector<Packet> gradients, CellGraph& loss) {
    of_loss.emplace();
    gradients = loss.backward(std::move(gradients), Roots(), BackwardPart::kWhole, *this,
                              stage.running_layer_);
    take(*of_loss);
    of_loss.reset();
    return gradients;
  }

  // The accumulator that the caller names to get the leaf's gradient. For a copy of a parameter, it
  // is the parameter's accumulator.
  const Node* asked_for(const Node* accumulator, const at::Tensor& leaf) const {
    const ModelState::Parameter* const parameter = run.plan.model.find(leaf);
    if (parameter == nullptr || parameter->tensor.is_same(leaf)) return accumulator;
    return torch::autograd::impl::try_get_grad_accumulator(parameter->tensor).get();
  }

  // Whether the leaf is among those whose gradients the caller asked for.
  bool is_requested(const Node* accumulator, const at::Tensor& leaf) const {
    const auto& leaves = run.requested->leaves;
    if (std::find(leaves.begin(), leaves.end(), asked_for(accumulator, leaf)) != leaves.end()) {
      return true;
    }
    TORCH_CHECK(!run.requested->all.contains(accumulator), stage.name_of(layer()),
                " uses a tensor that autograd::grad, or a backward with a list of inputs, was "
                "asked for, but that no layer has registered; register it "
                "(register_parameter), or use backward() without a list");
    return false;
  }

  // The sum for a leaf in the graph of the loss: if the layers use the leaf, too, this sum is added
  // together with theirs.
  at::Tensor* sum_in_loss(const NodePtr& accumulator, const at::Tensor& leaf) {
    if (run.unregistered != nullptr && run.plan.model.find(leaf) == nullptr) {
      run.unregistered->excuse(accumulator.get());
    }
    return of_loss->sum_of(accumulator, stage.index_);
  }

  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor& leaf) override {
    if (of_loss) return sum_in_loss(accumulator, leaf);
    if (run.requested != nullptr && !is_requested(accumulator.get(), leaf)) return discarded();
    const ModelState::Parameter* const parameter = run.plan.model.find(leaf);
    if (parameter == nullptr) notice_unregistered(accumulator.get(), leaf);
    const int64_t owner = stage.owner_of(run, leaf, parameter);
    if (owner != stage.index_) return task.leaf_sums->sum_of(accumulator, owner);
    return run.requested == nullptr ? nullptr : requested.sum_of(accumulator, stage.index_);
  }

  at::Tensor* in_place_of_grad(const NodePtr& accumulator, const at::Tensor& leaf) override {
    if (task.group_sums == nullptr || task.part == BackwardPart::kInputs) return nullptr;
    if (GroupScope::is_owned(run.plan.model.find(leaf), stage.index_)) return nullptr;
    return task.group_sums->sum_of(accumulator, leaf, run.plan.group_of(micro_batch));
  }

  void enter_foreign(const Node& node) override {
    // `hidden`: whether the pipeline has made the node, on a worker or, during this call, on the
    // caller's thread.
    const CellPlan& plan = run.plan;
    const auto& workers = run.worker_threads;
    const bool hidden =
        run.on_caller
            ? node.thread_id() == plan.thread && node.sequence_nr() >= plan.begin
            : node.thread_id() == thread() ||
                  std::find(workers.begin(), workers.end(), node.thread_id()) != workers.end();
    TORCH_CHECK(!hidden, stage.name_of(layer()),
                " uses a tensor of another micro-batch, of another stage, or of a forward that is "
                "recomputed, that came by a way that the pipeline does not see (a member of a "
                "layer, say); hand it "
                "on as one of the values between layers, stash and pop it (skip/skippable.h), "
                "detach() it, or use Checkpoint::kNever for an auxiliary loss within a partition");
    run.foreign.enter(node, stage.index_);
  }

  void hand_over_requested() {
    requested.take(stage.index_, [this](const LeafSums::Entry& entry) {
      const auto& leaves = run.requested->leaves;
      const auto place = std::find(leaves.begin(), leaves.end(), entry.accumulator.get());
      at::Tensor& sum = run.requested->sums[place - leaves.begin()];
      c10::NoGradGuard no_grad;
      sum = sum.defined() ? sum + entry.sum : entry.sum;
    });
  }
};

void Stage::take_tied_terms(const RunContext& run, std::vector<Packet>& gradients,
                            LeafSums& sums) const {
  for (size_t k = 0; k < boundary_.ports.tied_out.size(); ++k) {
    Packet& packet = gradients.at(boundary_.ports.outputs.size() + k);
    if (packet.items.empty() || !packet.items.front().tensor.defined()) continue;
    const at::Tensor& tied = run.plan.model.used_on(device_, tied_[boundary_.ports.tied_out[k]]);
    if (!tied.requires_grad()) continue;  // frozen since the forward, so no stage gets its gradient
    at::Tensor& sum = *sums.sum_of(torch::autograd::impl::grad_accumulator(tied),
                                   owner_of(run, tied, run.plan.model.find(tied)));
    at::Tensor& arrived = packet.items.front().tensor;
    // The sum may have a term already, because a stage between this one and the sender may have the
    // parameter itself, and use it without declaring it.
    const c10::NoGradGuard no_grad;
    sum = sum.defined() ? sum + arrived : std::move(arrived);
  }
  gradients.resize(boundary_.ports.outputs.size());
}

// Throws c10::ValueError for a sparse gradient of a tied parameter, which no process can send.
void Stage::check_dense(const RunContext& run, const at::Tensor& tied,
                        const at::Tensor& sum) const {
  if (sum.layout() == c10::kStrided) return;
  const ModelState::Parameter* const parameter = run.plan.model.find(tied);
  TORCH_CHECK_VALUE(false, "the gradient of the tied parameter ",
                    text::in_quotes(parameter == nullptr ? "" : parameter->name), " in stage ",
                    index_, " has layout ", sum.layout(),
                    ", and cannot go to the process that owns the parameter, which takes dense "
                    "ones only. Let the layers that use it give dense gradients (an embedding "
                    "without sparse(true), say), or put the partitions that use it into one "
                    "process");
}

void Stage::send_tied_terms(const RunContext& run, std::vector<Packet>& gradients,
                            LeafSums& sums) const {
  gradients.resize(boundary_.ports.inputs.size());  // a cell without a graph gives no gradients
  for (const size_t number : boundary_.ports.tied_in) {
    const at::Tensor& tied = run.plan.model.used_on(device_, tied_[number]);
    at::Tensor sum;
    if (tied.requires_grad()) {
      sum = sums.take_sum(torch::autograd::impl::grad_accumulator(tied).get());
    }
    if (over_processes_ && sum.defined()) check_dense(run, tied, sum);
    Packet& packet = gradients.emplace_back();
    if (!sum.defined()) continue;
    packet.items.emplace_back();
    packet.items.back().tensor = std::move(sum);
  }
}

std::vector<Packet> Stage::backward(const RunContext& run, int64_t micro_batch,
                                    std::vector<Packet> gradients, Cell& cell,
                                    const BackwardTask& task) {
  for (Packet& packet : gradients) arrive(packet, device_);
  if (!boundary_.ports.tied_out.empty() && task.part != BackwardPart::kWeights) {
    take_tied_terms(run, gradients, *task.leaf_sums);
  }
  RandomStreamsScope random_scope(&random_streams_, nullptr, nullptr,
                                  /*on_autograd_threads=*/!device_.is_cpu());

  if (graphs_ != nullptr) {
    graphs_->begin_backward(run.requested == nullptr && task.part == BackwardPart::kWhole);
  }
  GroupScope groups(run.plan, index_, micro_batch, task.part, task.group_sums);
  Backward backward(*this, run, micro_batch, task);
  PutBuffersBack put_back(buffers_, layers_);
  const bool is_recomputed_early = cell.recompute && cell.recompute->done;
  if (task.part != BackwardPart::kWeights && cell.recompute && !is_recomputed_early) {
    drop_useless_graph(cell);
  }
  SavedBuffersScope saved(buffers_, layers_, cell.saved, others_in(run));
  if (task.part != BackwardPart::kWeights) {
    backward.take(*task.leaf_sums);
    if (cell.seed.defined()) gradients = packet_of(cell.seed);
    if (cell.loss) {
      const auto noted = note_made(run.offloads, index_, micro_batch);
      gradients = backward.run_loss(std::move(gradients), *cell.loss);
    }
    // If no gradient arrived, the loss does not use this branch, and a recompute would be useless.
    if (any_defined(gradients) && cell.recompute && !cell.recompute->done) {
      cell.graph = recompute(run, micro_batch, *cell.recompute);
    }
  }
  std::vector<Packet> result;
  try {
    const auto noted = note_made(run.offloads, index_, micro_batch);
    result = cell.graph.backward(std::move(gradients), std::move(backward.roots), task.part,
                                 backward, running_layer_);
  } catch (...) {
    if (!runs_layer()) throw;
    rethrow_changed(layers_[running_layer_],
                    task.part == BackwardPart::kWeights || is_recomputed_early);
  }
  if (task.part == BackwardPart::kInputs && cell.recompute && !is_recomputed_early &&
      !cell.recompute->graph) {
    cell.saved = buffers_.saved(cell.held);
  }
  saved.finish();
  put_back.finish();
  groups.check_first_half();
  backward.hand_over_requested();
  if (task.part != BackwardPart::kWeights) send_tied_terms(run, result, *task.leaf_sums);
  if (!run.keep_graph) {
    cell.recompute.reset();
    cell.held.clear();
    if (task.part != BackwardPart::kInputs) cell.saved.clear();
    cell.loss.reset();
    cell.seed.reset();
  } else if (cell.recompute) {
    if (cell.recompute->graph) {
      cell.recompute->graph = std::move(cell.graph);  // for the next use
    } else {
      cell.saved.clear();
    }
    cell.graph = CellGraph();  // the next backward makes it again
    cell.recompute->done = false;
  }
  return result;
}

}  // namespace gpipe::internal
