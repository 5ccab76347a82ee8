#include "gpipe/internal/layer_runs/layer_runs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

#include "gpipe/batch_size.h"
#include "gpipe/checkpoint.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/call/devices.h"
#include "gpipe/internal/call/model_checks.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/run/make_pass.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/internal/threads/inside_pipeline.h"
#include "gpipe/placement.h"
#include "gpipe/runtime/exit_gate.h"
#include "skip/layout.h"
#include "skip/tracker.h"
#include "skip/verify.h"

namespace gpipe::internal {
namespace {

using torch::autograd::variable_list;

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  }
  return bytes;
}

const std::vector<int64_t>& checked(const torch::nn::Sequential& model,
                                    const std::vector<int64_t>& pieces) {
  TORCH_INTERNAL_ASSERT(!model->is_empty());
  TORCH_CHECK_VALUE(!inside_pipeline(),
                    "a model was profiled inside a layer of a pipeline, or its loss function; "
                    "profile it before the pipeline runs");
  skip::verify_skippables(model);
  check_balance(pieces, model->size());
  check_arguments(model, pieces);
  return pieces;
}

Schedule one_worker(int64_t stages, const std::vector<ActionKind>& backwards) {
  std::vector<Action> actions;
  for (int64_t j = 0; j < stages; ++j) {
    actions.push_back({ActionKind::kForward, static_cast<int32_t>(j), 0});
  }
  for (const ActionKind kind : backwards) {
    for (int64_t j = stages - 1; j >= 0; --j) {
      actions.push_back({kind, static_cast<int32_t>(j), 0});
    }
  }
  return Schedule::create(stages, 1, {std::move(actions)});
}

// This node stands for the loss: it passes on gradients that were made in the forward. No operator
// of LibTorch does so for outputs on any device, meta included, without work that would count as
// work of the layers.
class GivenGradients : public torch::autograd::Node {
 public:
  GivenGradients(torch::autograd::edge_list edges, variable_list gradients,
                 std::function<void()> done)
      : Node(std::move(edges)), gradients_(std::move(gradients)), done_(std::move(done)) {}

  variable_list apply(variable_list&&) override {
    variable_list gradients = std::move(gradients_);
    done_();
    return gradients;
  }

 private:
  variable_list gradients_;
  std::function<void()> done_;
};

}  // namespace

std::vector<int64_t> pieces_of(const torch::nn::Sequential& model) {
  check_layers(model);
  std::vector<int64_t> pieces;
  for (auto any = model->begin(); any != model->end(); ++any) {
    torch::nn::AnyModule layer = *any;  // the same module as `*any`, but not const
    // The first layer takes the caller's inputs, so it always begins a piece. check_arguments()
    // refuses values that cannot travel.
    if (pieces.empty() || argument_kind(layer)) {
      pieces.push_back(1);
    } else {
      ++pieces.back();
    }
  }
  return pieces;
}

LayerRuns::LayerRuns(const torch::nn::Sequential& model, c10::Device device, int64_t cpu_threads,
                     std::vector<int64_t> pieces, bool defers_batch_norm)
    : model_(model),
      device_(device),
      pieces_(checked(model, pieces)),
      defers_batch_norm_(defers_batch_norm),
      layout_(skip::Layout::inspect(model, pieces_)),
      schedule_(one_worker(static_cast<int64_t>(pieces_.size()), {ActionKind::kBackward})),
      split_schedule_(one_worker(static_cast<int64_t>(pieces_.size()),
                                 {ActionKind::kInputGradient, ActionKind::kWeightGradient})) {
  const WorkScope work;
  const size_t stages = pieces_.size();
  const std::vector<c10::Device> devices =
      devices_for(stages, std::vector<c10::Device>(stages, device));
  device_ = devices.front();

  std::vector<std::vector<Layer>> parts = partitions_of(model, pieces_);
  input_kind_ = argument_kind(parts[0][0].module);
  pipeline_ = std::make_shared<Pipeline>(std::move(parts), devices, layout_, cpu_threads,
                                         Placement::of(std::vector<int64_t>(stages, 0)));
}

LayerRuns::~LayerRuns() = default;

Value LayerRuns::first_value(const Tensors& inputs) const {
  return shape_as(input_kind_.value_or(ValueKind::kTensor), inputs, "the model's first layer");
}

LayerRuns::Traffic LayerRuns::traffic(const Tensors& inputs) {
  // The layers run with gradients, because a layer may ask for them in its forward. The graph is
  // dropped.
  const c10::AutoGradMode grad_mode(true);
  Tensors own;  // the copies are no leaves, so a layer may change them in place
  for (const at::Tensor& input : inputs) {
    own.push_back(input.defined() && input.requires_grad() ? input.clone() : input);
  }
  Traffic traffic;
  skip::Tracker tracker;
  const skip::TrackerScope scope(tracker);
  torch::nn::AnyValue value = to_any(first_value(own));
  auto any = model_->begin();
  int64_t index = 0;
  for (const int64_t piece : pieces_) {
    for (int64_t k = 0; k < piece; ++k, ++any, ++index) {
      value = any->any_forward(std::move(value));
      for (const skip::SkipEdge& edge : layout_.edges()) {
        if (edge.source_layer != index) continue;
        at::Tensor stashed = tracker.pop(edge.key);
        traffic.skips.push_back({edge.source_layer, edge.target_layer, bytes_of({stashed})});
        tracker.stash(edge.key, std::move(stashed));
      }
    }
    Value output = from_any(std::move(value));
    traffic.outputs.push_back(bytes_of(output.tensors));
    value = to_any(std::move(output));
  }
  return traffic;
}

void LayerRuns::run(const Tensors& inputs, const std::vector<int64_t>& shared,
                    const LayerObserver& observer, Backwards backwards) {
  const WorkScope work;
  const c10::AutoGradMode grad_mode(true);
  pipeline_->check_callable();
  const int64_t stages = pipeline_->stages();
  const auto tell = [&](int64_t piece, bool backward, bool begin, bool weights = false) {
    if (!device_.is_cpu() && !device_.is_meta()) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    }
    observer({piece, backward, begin, std::chrono::steady_clock::now(), weights});
  };

  PassTerms terms;
  terms.mini_batch = MiniBatch(batch_size(inputs, "sample", shared), /*chunks=*/1);
  terms.step_seed = draw_step_seed();
  terms.checkpoints.assign(stages, Checkpoint::kNever);
  terms.inputs = first_value(inputs);
  terms.shared_inputs = shared;
  const std::unique_ptr<Pass> pass = make_pass(*pipeline_, std::move(terms));
  pass->keep_outputs = false;
  pass->plan.defer_batch_norm = defers_batch_norm_;

  // The last stage's actions include the loss. The layers' part of the forward ends where the loss
  // begins, and their part of the backward begins where the loss ends.
  bool reached = false;  // whether the loss depends on the layers
  const LossFn loss = [&](const Tensors& outputs, const Tensors&) {
    tell(stages - 1, /*backward=*/false, /*begin=*/false);
    at::Tensor result = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
    torch::autograd::edge_list edges;
    variable_list gradients;
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      edges.push_back(torch::autograd::impl::gradient_edge(output));
      c10::NoGradGuard no_grad;
      gradients.push_back(at::ones_like(output));
    }
    reached = !edges.empty();
    if (!reached) return result.requires_grad_();
    const auto node = make_node<GivenGradients>(std::move(edges), std::move(gradients), [&] {
      tell(stages - 1, /*backward=*/true, /*begin=*/true);
    });
    const uint32_t number = node->add_input_metadata(result);
    torch::autograd::impl::set_gradient_edge(result, {node, number});
    return result;
  };
  pass->loss.emplace(Tensors(), device_, pass->mini_batch, loss, StepOptions());

  const bool split = backwards == Backwards::kSplit;
  pipeline_->run_step(*pass, split ? split_schedule_ : schedule_, [&](const Event& event) {
    if (event.failed) return;
    const bool backward = event.action.kind != ActionKind::kForward;
    const bool weights = event.action.kind == ActionKind::kWeightGradient;
    const bool begin = event.edge == Event::Edge::kBegin;
    const bool last = event.action.stage == stages - 1;
    if (last && !backward && !begin) return;
    if (last && backward && !weights && begin && reached) return;
    tell(event.action.stage, backward, begin, weights);
  });
  pipeline_->check_late();
}

}  // namespace gpipe::internal
