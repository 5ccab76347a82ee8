#include "gpipe/internal/stage/stage_walk.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "gpipe/internal/backward/foreign_nodes.h"
#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/cell/leaf_owner.h"
#include "gpipe/internal/cell/unregistered_leaf.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/stage/group_scope.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

}  // namespace

StageWalk::StageWalk(StageCode& code, c10::Device device, CellRandom random, const RunContext& run,
                     int64_t micro_batch, const BackwardTask& task)
    : Walk(random),
      code_(code),
      device_(device),
      run_(run),
      micro_batch_(micro_batch),
      task_(task) {
  settings.keep_graph = run.keep_graph;
  settings.check_finite = run.check_finite;
  target_gradients = task.target_gradients;
}

// Notes a leaf that no layer has registered. It excuses leaves that the loss function captures,
// which are the caller's, and terms that other stages sent, which come from no layer here.
void StageWalk::notice_unregistered(const Node* accumulator, const at::Tensor& leaf) const {
  if (run_.unregistered == nullptr || run_.unregistered->noted()) return;
  // If no layer has led to the leaf (but the loss, say), the leaf is excused for the whole run,
  // because other stages, and weight halves, get its terms without knowing where they come from.
  if (!code_.is_layer(layer())) return run_.unregistered->excuse(accumulator);
  if (std::find(sent_.begin(), sent_.end(), accumulator) != sent_.end()) return;
  run_.unregistered->note(code_.name_of(layer()), accumulator, leaf);
}

void StageWalk::take(LeafSums& sums) {
  sums.take(code_.stage(), [this](LeafSums::Entry entry) {
    if (run_.requested != nullptr) {
      *requested_.sum_of(entry.accumulator, code_.stage()) = std::move(entry.sum);
    } else {
      sent_.push_back(entry.accumulator.get());
      roots_.add(Edge(std::move(entry.accumulator), 0), std::move(entry.sum));
    }
  });
}

std::vector<Packet> StageWalk::run_loss(std::vector<Packet> gradients, CellGraph& loss) {
  of_loss_.emplace();
  gradients =
      loss.backward(std::move(gradients), Roots(), BackwardPart::kWhole, *this, code_.position());
  take(*of_loss_);
  of_loss_.reset();
  return gradients;
}

// The accumulator that the caller names to get the leaf's gradient. For a copy of a parameter, it
// is the parameter's accumulator.
const Node* StageWalk::asked_for(const Node* accumulator, const at::Tensor& leaf) const {
  const ModelState::Parameter* const parameter = run_.plan.model.find(leaf);
  if (parameter == nullptr || parameter->tensor.is_same(leaf)) return accumulator;
  return torch::autograd::impl::try_get_grad_accumulator(parameter->tensor).get();
}

// Whether the leaf is among those whose gradients the caller asked for.
bool StageWalk::is_requested(const Node* accumulator, const at::Tensor& leaf) const {
  const auto& leaves = run_.requested->leaves;
  if (std::find(leaves.begin(), leaves.end(), asked_for(accumulator, leaf)) != leaves.end()) {
    return true;
  }
  TORCH_CHECK(!run_.requested->all.contains(accumulator), code_.name_of(layer()),
              " uses a tensor that autograd::grad, or a backward with a list of inputs, was "
              "asked for, but that no layer has registered; register it "
              "(register_parameter), or use backward() without a list");
  return false;
}

// The sum for a leaf in the graph of the loss: if the layers use the leaf, too, this sum is added
// together with theirs.
at::Tensor* StageWalk::sum_in_loss(const NodePtr& accumulator, const at::Tensor& leaf) {
  if (run_.unregistered != nullptr && run_.plan.model.find(leaf) == nullptr) {
    run_.unregistered->excuse(accumulator.get());
  }
  return of_loss_->sum_of(accumulator, code_.stage());
}

at::Tensor* StageWalk::sum_of(const NodePtr& accumulator, const at::Tensor& leaf) {
  if (of_loss_) return sum_in_loss(accumulator, leaf);
  if (run_.requested != nullptr && !is_requested(accumulator.get(), leaf)) return discarded();
  const ModelState::Parameter* const parameter = run_.plan.model.find(leaf);
  if (parameter == nullptr) notice_unregistered(accumulator.get(), leaf);
  const int64_t owner = owner_of(run_, code_.stage(), device_, leaf, parameter);
  if (owner != code_.stage()) return task_.leaf_sums->sum_of(accumulator, owner);
  return run_.requested == nullptr ? nullptr : requested_.sum_of(accumulator, code_.stage());
}

at::Tensor* StageWalk::in_place_of_grad(const NodePtr& accumulator, const at::Tensor& leaf) {
  if (task_.group_sums == nullptr || task_.part == BackwardPart::kInputs) return nullptr;
  if (GroupScope::is_owned(run_.plan.model.find(leaf), code_.stage())) return nullptr;
  return task_.group_sums->sum_of(accumulator, leaf, run_.plan.group_of(micro_batch_));
}

void StageWalk::enter_foreign(const Node& node) {
  // `hidden`: whether the pipeline has made the node, on a worker or, during this call, on the
  // caller's thread.
  const CellPlan& plan = run_.plan;
  const auto& workers = run_.worker_threads;
  const bool hidden =
      run_.on_caller ? node.thread_id() == plan.thread && node.sequence_nr() >= plan.begin
                     : node.thread_id() == thread() || std::find(workers.begin(), workers.end(),
                                                                 node.thread_id()) != workers.end();
  TORCH_CHECK(!hidden, code_.name_of(layer()),
              " uses a tensor of another micro-batch, of another stage, or of a forward that is "
              "recomputed, that came by a way that the pipeline does not see (a member of a "
              "layer, say); hand it "
              "on as one of the values between layers, stash and pop it (skip/skippable.h), "
              "detach() it, or use Checkpoint::kNever for an auxiliary loss within a partition");
  run_.foreign.enter(node, code_.stage());
}

void StageWalk::hand_over_requested() {
  requested_.take(code_.stage(), [this](const LeafSums::Entry& entry) {
    const auto& leaves = run_.requested->leaves;
    const auto place = std::find(leaves.begin(), leaves.end(), entry.accumulator.get());
    at::Tensor& sum = run_.requested->sums[place - leaves.begin()];
    c10::NoGradGuard no_grad;
    sum = sum.defined() ? sum + entry.sum : entry.sum;
  });
}

void rethrow_changed(const Layer& layer, bool waited) {
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

}  // namespace gpipe::internal
