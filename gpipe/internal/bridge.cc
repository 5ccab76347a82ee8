#include "gpipe/internal/bridge.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <numeric>
#include <string>
#include <utility>

#include "gpipe/internal/local_backward.h"
#include "gpipe/internal/micro_batch.h"
#include "gpipe/internal/pipeline.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// The gradients on their way from the output node to the input node.
struct Hop {
  variable_list gradients;
};

// Its edges: to the inputs, then to the accumulators of `parameters` (numbers in
// Pipeline::parameters). The workers accumulate parameters' gradients themselves, so a backward
// gets undefined ones here, which accumulators ignore; only a caller that names a parameter
// (torch::autograd::grad) gets its gradient through this node.
class InputNode : public Node {
 public:
  InputNode(torch::autograd::edge_list&& edges, std::vector<size_t> parameters,
            std::weak_ptr<Pipeline> pipeline, std::shared_ptr<Pass> pass, std::shared_ptr<Hop> hop,
            std::vector<std::vector<int64_t>> rows)
      : Node(std::move(edges)),
        parameters_(std::move(parameters)),
        pipeline_(std::move(pipeline)),
        pass_(std::move(pass)),
        hop_(std::move(hop)),
        rows_(std::move(rows)) {
    for (const std::vector<int64_t>& counts : rows_) {
      std::vector<int64_t> starts(counts.size(), 0);
      std::partial_sum(counts.begin(), counts.end() - 1, starts.begin() + 1);
      starts_.push_back(std::move(starts));
    }
  }

  variable_list apply(variable_list&&) override {
    variable_list gradients = std::move(hop_->gradients);
    hop_->gradients.clear();
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "a pipeline cannot be differentiated twice: backward was asked to create a graph "
                "(create_graph = true); use the unpartitioned model for higher derivatives");
    TORCH_CHECK(
        pass_ != nullptr && !pass_->used,
        "backward ran through a pipeline's output a second time, but what it needs was freed "
        "the first time; give retain_graph = true to the first backward, or run forward again");
    const std::shared_ptr<Pipeline> pipeline = pipeline_.lock();
    TORCH_CHECK(pipeline != nullptr,
                "backward ran through the output of a pipeline that is already destroyed; keep the "
                "GPipe module alive until its last backward is done");
    // Not empty where the caller named what it wants gradients of.
    const auto* named = torch::autograd::get_current_graph_task_exec_info();
    const bool all = named == nullptr || named->empty();
    const size_t inputs = num_outputs() - parameters_.size();
    pass_->captured.clear();
    if (all) {
      check_no_new_hooks(*pipeline, inputs);
    } else {
      capture_wanted(*pipeline, inputs);
    }
    pass_->keep_graph = torch::autograd::get_current_graph_task_keep_graph();

    pass_->output_gradient_of = [&](int64_t i) {
      Packet packet;
      for (size_t n = 0; n < gradients.size(); ++n) {
        Item item;
        if (gradients[n].defined()) {
          const bool whole = pass_->micro_batches() == 1;
          item.tensor = whole ? gradients[n] : rows_of(gradients[n], starts_[n][i], rows_[n][i]);
        }
        packet.items.push_back(std::move(item));
      }
      return packet;
    };
    std::shared_ptr<Pass> pass = pass_;
    pipeline->run_backward(*pass);

    variable_list result(num_outputs());
    for (size_t k = 0; k < inputs; ++k) {
      if (task_should_compute_output(k)) result[k] = joined_gradients(*pass, k);
    }
    if (!all) {
      for (size_t k = inputs; k < result.size(); ++k) result[k] = captured_gradient(*pass, k);
      pass->captured.clear();
    }
    if (!pass->keep_graph) pass->used = true;
    return result;
  }

  void release_variables() override { pass_.reset(); }

  std::string name() const override { return "GPipeBackward"; }

 private:
  // An accumulator would hand its hooks the undefined gradient that it gets from here.
  void check_no_new_hooks(const Pipeline& pipeline, size_t inputs) const {
    for (size_t k = 0; k < parameters_.size(); ++k) {
      TORCH_CHECK(!has_hooks(*next_edge(inputs + k).function), "the parameter '",
                  pipeline.parameters()[parameters_[k]].name,
                  "' was given a hook after the pipeline's forward and before its backward; "
                  "register hooks before forward");
    }
  }

  // Makes every stage collect the gradients of those of its parameters that the caller named.
  void capture_wanted(const Pipeline& pipeline, size_t inputs) {
    pass_->captured.resize(pipeline.stages());
    for (size_t k = 0; k < parameters_.size(); ++k) {
      if (!task_should_compute_output(inputs + k)) continue;
      for (int64_t j : pipeline.parameters()[parameters_[k]].stages) {
        pass_->captured[j].leaves.push_back(next_edge(inputs + k));
        pass_->captured[j].sums.emplace_back();
      }
    }
  }

  // Over the stages that have the parameter, the last stage first, as backward goes.
  at::Tensor captured_gradient(const Pass& pass, size_t output) const {
    at::Tensor sum;
    for (auto stage = pass.captured.rbegin(); stage != pass.captured.rend(); ++stage) {
      for (size_t n = 0; n < stage->leaves.size(); ++n) {
        if (stage->leaves[n] == next_edge(output)) Captured::add_to(sum, stage->sums[n]);
      }
    }
    return sum;
  }

  std::vector<size_t> parameters_;
  std::weak_ptr<Pipeline> pipeline_;
  std::shared_ptr<Pass> pass_;
  std::shared_ptr<Hop> hop_;
  // [output][micro-batch]: they need not be those of the input.
  std::vector<std::vector<int64_t>> rows_;
  std::vector<std::vector<int64_t>> starts_;
};

class OutputNode : public Node {
 public:
  OutputNode(torch::autograd::edge_list&& edges, std::shared_ptr<Hop> hop)
      : Node(std::move(edges)), hop_(std::move(hop)) {}

  variable_list apply(variable_list&& gradients) override {
    hop_->gradients = std::move(gradients);
    return {at::zeros({1})};
  }

  std::string name() const override { return "GPipeOutputBackward"; }

 private:
  std::shared_ptr<Hop> hop_;
};

}  // namespace

at::Tensor joined_gradients(const Pass& pass, size_t input) {
  const at::Tensor* defined = nullptr;
  for (const Packet& packet : pass.input_gradients) {
    if (input < packet.items.size() && packet.items[input].tensor.defined()) {
      defined = &packet.items[input].tensor;
    }
  }
  if (defined == nullptr) return {};
  if (pass.input_gradients.size() == 1) return *defined;
  std::vector<at::Tensor> pieces;
  for (size_t i = 0; i < pass.input_gradients.size(); ++i) {
    const Packet& packet = pass.input_gradients[i];
    if (input < packet.items.size() && packet.items[input].tensor.defined()) {
      pieces.push_back(packet.items[input].tensor);
    } else {
      std::vector<int64_t> shape = defined->sizes().vec();
      shape[0] = pass.sizes[i];
      pieces.push_back(at::zeros(shape, defined->options()));
    }
  }
  return at::cat(pieces, 0);
}

void attach_bridge(const std::shared_ptr<Pipeline>& pipeline, std::shared_ptr<Pass> pass,
                   const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                   const std::vector<bool>& needs_grad) {
  std::vector<std::vector<int64_t>> rows(outputs.size());
  for (size_t n = 0; n < outputs.size(); ++n) {
    for (const Packet& packet : pass->outputs) {
      const at::Tensor& piece = packet.items[n].tensor;
      rows[n].push_back(piece.defined() && piece.dim() > 0 ? piece.size(0) : 0);
    }
  }
  pass->outputs.clear();  // the joined outputs are the caller's; nothing in backward needs these

  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    const bool wanted = input.defined() && input.requires_grad();
    edges.push_back(wanted ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  }
  std::vector<size_t> parameters;
  for (size_t k = 0; k < pipeline->parameters().size(); ++k) {
    const at::Tensor& parameter = pipeline->parameters()[k].tensor;
    if (!parameter.requires_grad() || !parameter.is_leaf()) continue;
    torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(parameter);
    // Its hooks are called by the stages, with each micro-batch's gradient.
    if (has_hooks(*edge.function)) continue;
    edges.push_back(std::move(edge));
    parameters.push_back(k);
  }
  auto hop = std::make_shared<Hop>();
  auto input_node = std::make_shared<InputNode>(std::move(edges), std::move(parameters), pipeline,
                                                std::move(pass), hop, std::move(rows));
  input_node->add_input_metadata(at::zeros({1}));
  auto output_node = std::make_shared<OutputNode>(
      torch::autograd::edge_list{torch::autograd::Edge(input_node, 0)}, hop);
  for (size_t n = 0; n < outputs.size(); ++n) {
    // Every output takes a place, so that gradients arrive by the outputs' numbers.
    if (!needs_grad[n]) {
      output_node->add_input_metadata(Node::undefined_input());
      continue;
    }
    const uint32_t number = output_node->add_input_metadata(outputs[n]);
    torch::autograd::impl::set_gradient_edge(outputs[n], {output_node, number});
  }
}

}  // namespace gpipe::internal
