#include "gpipe/internal/call/bridge.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "gpipe/internal/backward/gradient_memory.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/run/failure.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/threads/inside_pipeline.h"
#include "gpipe/runtime/warning_log.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// The gradients of one backward on their way from the output node to the input node. They travel
// inside the tensor between the two nodes, so backwards of several threads do not mix.
struct CarriedGradients {
  double element = 0;
  variable_list gradients;
};

void delete_carried(void* carried) { delete static_cast<CarriedGradients*>(carried); }

at::Tensor tensor_with(variable_list gradients) {
  auto* carried = new CarriedGradients{0, std::move(gradients)};
  c10::DataPtr data(&carried->element, carried, &delete_carried, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(double), std::move(data));
  at::Tensor tensor = at::empty({0}, at::kDouble);
  tensor.set_(std::move(storage), 0, {1}, {1});
  return tensor;
}

variable_list gradients_in(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined() && tensor.has_storage() &&
                  tensor.storage().data_ptr().get_deleter() == &delete_carried,
              "a pipeline's gradients were replaced on their way through autograd's graph");
  return std::move(
      static_cast<CarriedGradients*>(tensor.storage().data_ptr().get_context())->gradients);
}

// Runs the backward half. Its edges lead to the inputs, then to the accumulators of `parameters`
// (indices into ModelState::parameters). The workers accumulate parameters' gradients themselves,
// so a backward gets undefined ones here, which accumulators ignore. Only a caller that names a
// parameter (torch::autograd::grad) gets its gradient through this node.
class InputNode : public Node {
 public:
  InputNode(torch::autograd::edge_list&& edges, std::vector<size_t> parameters,
            std::weak_ptr<Pipeline> pipeline, std::unique_ptr<Pass> pass)
      : Node(std::move(edges)),
        parameters_(std::move(parameters)),
        pipeline_(std::move(pipeline)),
        pass_(std::move(pass)) {}

  variable_list apply(variable_list&& inputs) override {
    try {
      return run(inputs);
    } catch (...) {
      throw_into_engine(std::current_exception());
    }
  }

  void release_variables() override {
    std::unique_ptr<Pass> spent;
    std::lock_guard<std::mutex> lock(mutex_);
    spent = std::move(pass_);
  }

  std::string name() const override { return "GPipeBackward"; }

 private:
  variable_list run(const variable_list& inputs) {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "a pipeline cannot be differentiated twice: backward was asked to create a graph "
                "(create_graph = true); use the unpartitioned model for higher derivatives");
    TORCH_CHECK(!inside_pipeline(),
                "a layer or a loss function of a pipeline used an earlier output of a pipeline, "
                "and its backward reached that output's graph; detach() the output, or compute "
                "that part of the loss outside");
    // A spent pass is destroyed outside the lock, because users' objects may be destroyed with it
    // and run a backward of their own.
    std::unique_ptr<Pass> spent;
    // A backward of another thread through the same outputs waits here.
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(
        !failed_,
        "backward ran through a pipeline's output whose earlier backward failed, so that what the "
        "micro-batches had kept is gone; run forward again");
    TORCH_CHECK(
        pass_ != nullptr,
        "backward ran through a pipeline's output a second time, but what it needs was freed "
        "the first time; give retain_graph = true to the first backward, or run forward again");
    const std::shared_ptr<Pipeline> pipeline = pipeline_.lock();
    TORCH_CHECK(pipeline != nullptr,
                "backward ran through the output of a pipeline that is already destroyed; keep the "
                "GPipe module alive until its last backward is done");
    // `named` is not empty if the caller named the tensors whose gradients it wants.
    const auto* named = torch::autograd::get_current_graph_task_exec_info();
    const bool all = named == nullptr || named->empty();
    const size_t own = num_outputs() - parameters_.size();
    check_no_new_hooks(own);
    BackwardRequest request;
    request.output_gradients = gradients_in(inputs[0]);
    request.keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    if (!all) request.requested = requested_of(*named, own);

    std::vector<Packet> gradients;
    try {
      gradients = pipeline->run_backward(*pass_, request);
    } catch (...) {
      failed_ = pass_->failed;
      if (failed_) spent = std::move(pass_);
      throw;
    }

    log_warning(pipeline->unregistered_leaf_text());

    variable_list result(num_outputs());
    for (size_t k = 0; k < own; ++k) {
      if (!task_should_compute_output(k)) continue;
      result[k] = pass_->inputs.join_gradients(gradients, k);
    }
    for (size_t k = own; request.requested && k < result.size(); ++k) {
      result[k] = requested_gradient(*request.requested, k);
      // The gradient gets memory of its own, because an accumulator would take over the present
      // memory, which another gradient may also have.
      unshare(result[k]);
    }
    if (!request.keep_graph) spent = std::move(pass_);
    return result;
  }

  // Throws if a parameter was given a hook since the forward, because its accumulator would call
  // the hook with the undefined gradient that it gets from here.
  void check_no_new_hooks(size_t inputs) const {
    for (size_t k = 0; k < parameters_.size(); ++k) {
      TORCH_CHECK(!has_hooks(*next_edge(inputs + k).function), "the parameter '",
                  pass_->plan.model.parameters()[parameters_[k]].name,
                  "' was given a hook after the pipeline's forward and before its backward; "
                  "register hooks before forward");
    }
  }

  // The request for the parameters that the caller named.
  template <typename ExecInfo>
  RequestedGradients requested_of(const ExecInfo& named, size_t inputs) const {
    RequestedGradients requested;
    for (const auto& [node, info] : named) {
      if (info.captures_ != nullptr) requested.all.insert(node);
    }
    for (size_t k = 0; k < parameters_.size(); ++k) {
      if (!task_should_compute_output(inputs + k)) continue;
      requested.leaves.push_back(next_edge(inputs + k).function.get());
      requested.sums.emplace_back();
    }
    for (const ModelState::Parameter& parameter : pass_->plan.model.parameters()) {
      const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter.tensor);
      if (accumulator == nullptr || !requested.all.contains(accumulator.get())) continue;
      TORCH_CHECK(!has_hooks(*accumulator),
                  "autograd::grad, or a backward with a list of inputs, "
                  "was asked for the parameter '",
                  parameter.name,
                  "', which carries hooks: the stages call them with each micro-batch's gradient, "
                  "so they cannot be called once more; use backward() without a list, or remove "
                  "the hooks");
    }
    return requested;
  }

  at::Tensor requested_gradient(const RequestedGradients& requested, size_t output) const {
    const auto& leaves = requested.leaves;
    const auto place = std::find(leaves.begin(), leaves.end(), next_edge(output).function.get());
    return place == leaves.end() ? at::Tensor() : requested.sums[place - leaves.begin()];
  }

  std::mutex mutex_;  // guards the following members
  std::vector<size_t> parameters_;
  std::weak_ptr<Pipeline> pipeline_;
  std::unique_ptr<Pass> pass_;  // null: freed
  bool failed_ = false;         // a backward failed; the pass is freed
};

class OutputNode : public Node {
 public:
  explicit OutputNode(torch::autograd::edge_list&& edges) : Node(std::move(edges)) {}

  variable_list apply(variable_list&& gradients) override {
    return {tensor_with(std::move(gradients))};
  }

  std::string name() const override { return "GPipeOutputBackward"; }
};

}  // namespace

void attach_bridge(const std::shared_ptr<Pipeline>& pipeline, std::unique_ptr<Pass> pass,
                   const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                   const std::vector<bool>& needs_grad) {
  pass->outputs.clear();  // the caller has the joined outputs; no backward needs these

  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    const bool wanted = input.defined() && input.requires_grad();
    edges.push_back(wanted ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  }
  std::vector<size_t> parameters;
  const std::vector<ModelState::Parameter>& known = pass->plan.model.parameters();
  for (size_t k = 0; k < known.size(); ++k) {
    const at::Tensor& parameter = known[k].tensor;
    if (!parameter.requires_grad() || !parameter.is_leaf()) continue;
    torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(parameter);
    // A parameter with hooks gets no edge, because the stages call its hooks, with each
    // micro-batch's gradient.
    if (has_hooks(*edge.function)) continue;
    edges.push_back(std::move(edge));
    parameters.push_back(k);
  }
  auto input_node = make_node<InputNode>(std::move(edges), std::move(parameters),
                                         std::weak_ptr<Pipeline>(pipeline), std::move(pass));
  input_node->add_input_metadata(at::zeros({1}, at::kDouble));
  auto output_node =
      make_node<OutputNode>(torch::autograd::edge_list{torch::autograd::Edge(input_node, 0)});
  for (size_t n = 0; n < outputs.size(); ++n) {
    // Every output takes a place, so that gradients arrive under the outputs' numbers.
    if (!needs_grad[n]) {
      output_node->add_input_metadata(Node::undefined_input());
      continue;
    }
    const uint32_t number = output_node->add_input_metadata(outputs[n]);
    torch::autograd::impl::set_gradient_edge(outputs[n], {output_node, number});
  }
}

}  // namespace gpipe::internal
