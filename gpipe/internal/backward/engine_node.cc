#include "gpipe/internal/backward/engine_node.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "gpipe/internal/backward/walk_number.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/runtime/exit_gate.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Takes the results of a node when the engine runs this node alone.
class Collector : public Node {
 public:
  void expect(const InputMetadata& metadata) { input_metadata_.push_back(metadata); }
  variable_list apply(variable_list&& gradients) override {
    collected = std::move(gradients);
    return {};
  }
  std::string name() const override { return "GPipeCollector"; }

  variable_list collected;
};

// Passes a node its inputs. Some may be undefined, which the engine does not accept as roots.
class Feeder : public Node {
 public:
  Feeder(edge_list&& edges, variable_list&& values)
      : Node(std::move(edges)), values_(std::move(values)) {
    add_input_metadata(trigger);
  }
  variable_list apply(variable_list&&) override {
    add_to_walk(torch::autograd::get_current_graph_task_id());
    return std::move(values_);
  }
  std::string name() const override { return "GPipeFeeder"; }

  const at::Tensor trigger = at::zeros({1});

 private:
  variable_list values_;
};

// Runs work that is not part of autograd's graph. The node keeps an exception of the work, because
// the engine catches only std::exception.
class Work : public Node {
 public:
  explicit Work(const std::function<void()>& work) : work_(work) { add_input_metadata(trigger); }
  variable_list apply(variable_list&&) override {
    try {
      work_();
    } catch (...) {
      error = std::current_exception();
    }
    return {};
  }
  std::string name() const override { return "GPipeWork"; }

  const at::Tensor trigger = at::zeros({1});
  std::exception_ptr error;

 private:
  const std::function<void()>& work_;
};

// Returns the node's edges, redirected to `collector`. The collector's inputs are the valid edges
// in their order.
edge_list detour(const Node& node, const NodePtrTo<Collector>& collector) {
  edge_list edges = node.next_edges();
  uint32_t count = 0;
  for (Edge& edge : edges) {
    if (!edge.is_valid()) continue;
    collector->expect(edge.function->input_metadata(edge.input_nr));
    edge = Edge(collector, count++);
  }
  return edges;
}

// The engine, which asks LibTorch for the accelerator in its first run, on CPUs, too. The static
// object behind that is made here, so that exit() shuts the gate before it destroys the object.
Engine& engine() {
  static const bool made = [] {
    (void)at::getAccelerator(/*checked=*/false);
    shut_at_exit(/*in_any_case=*/true);
    return true;
  }();
  (void)made;
  return Engine::get_default_engine();
}

}  // namespace

variable_list run_in_engine(Node& node, variable_list inputs, bool keep_graph) {
  edge_list edges;
  for (uint32_t k = 0; k < inputs.size(); ++k) edges.emplace_back(node.getptr(), k);
  auto feeder = make_node<Feeder>(std::move(edges), std::move(inputs));
  auto collector = make_node<Collector>();
  {
    EdgesScope scope(node, detour(node, collector));
    engine().execute({Edge(feeder, 0)}, {feeder->trigger}, keep_graph,
                     /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  variable_list outputs(node.next_edges().size());
  size_t next = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!node.next_edge(k).is_valid()) continue;
    if (next < collector->collected.size()) outputs[k] = std::move(collector->collected[next]);
    ++next;
  }
  return outputs;
}

void run_for_all_gradients(const std::function<void()>& work) {
  const auto* const asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked == nullptr || asked->empty()) return work();
  auto node = make_node<Work>(work);
  engine().execute({Edge(node, 0)}, {node->trigger}, /*keep_graph=*/false,
                   /*create_graph=*/false, /*accumulate_grad=*/true);
  if (node->error) std::rethrow_exception(node->error);
}

}  // namespace gpipe::internal
