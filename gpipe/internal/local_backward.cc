#include "gpipe/internal/local_backward.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/boundary.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::InputBuffer;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Whether the node is one of LibTorch's own operators', or ours: it needs nothing of the engine but
// its inputs. The backward of a custom function (a CppNode) may ask for the engine's graph task.
bool is_builtin(const Node& node) {
  const std::type_info& type = typeid(node);
  if (type == typeid(Boundary)) return true;
  const std::string_view mangled = type.name();
  return starts_with(mangled, "N5torch8autograd") &&
         !starts_with(mangled, "N5torch8autograd7CppNodeI");
}

// Whether the node may run outside the engine. pre_hooks() are those of the stage itself.
bool is_local(Node& node) { return node.device().is_cpu() && is_builtin(node) && !has_hooks(node); }

// Whether `gradient` is what the node expects already, the usual case: then it need not go through
// validate_outputs, which is slow at finding that out.
bool fits(const InputMetadata& expected, const at::Tensor& gradient) {
  if (expected.was_default_constructed() || expected.is_nested_tensor() ||
      expected.is_tensor_subclass() || expected.layout() != c10::kStrided ||
      gradient.layout() != c10::kStrided || gradient.is_nested() ||
      gradient.scalar_type() != expected.dtype().toScalarType() ||
      expected.grad_dtype() != gradient.scalar_type() || gradient.device() != expected.device() ||
      gradient.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;
  }
  const c10::SymIntArrayRef shape = expected.shape_as_dim_vector();
  const c10::IntArrayRef sizes = gradient.sizes();
  return shape.size() == sizes.size() && std::equal(sizes.begin(), sizes.end(), shape.begin(),
                                                    [](int64_t have, const c10::SymInt& want) {
                                                      const std::optional<int64_t> number =
                                                          want.maybe_as_int();
                                                      return number && *number == have;
                                                    });
}

// Checks gradients on their way along `edges`, and brings them to the expected form.
void validate(const edge_list& edges, variable_list& gradients, const Node* from) {
  bool all_fit = edges.size() == gradients.size();
  for (size_t i = 0; all_fit && i < edges.size(); ++i) {
    if (!edges[i].is_valid() || !gradients[i].defined()) continue;
    all_fit = fits(edges[i].function->input_metadata(edges[i].input_nr), gradients[i]);
  }
  if (all_fit) return;
  torch::autograd::validate_outputs(edges, gradients, [from](const std::string& message) {
    return from == nullptr ? message
                           : c10::str("Function ", from->name(), " returned an ", message);
  });
}

class LocalBackward {
 public:
  // Counts how many gradients each node waits for. False: some node is not local.
  bool discover(const edge_list& roots) {
    std::vector<Node*> found;
    for (const Edge& root : roots) {
      if (!count(root, found)) return false;
    }
    while (!found.empty()) {
      Node* node = found.back();
      found.pop_back();
      for (const Edge& edge : node->next_edges()) {
        if (edge.is_valid() && !count(edge, found)) return false;
      }
    }
    return true;
  }

  void run(const edge_list& roots, variable_list& gradients, bool keep_graph) {
    validate(roots, gradients, nullptr);
    deliver(roots, gradients);
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), runs_later);
      Ready next = std::move(ready_.back());
      ready_.pop_back();
      evaluate(*next.node, std::move(next.inputs), keep_graph);
    }
  }

 private:
  struct Waiting {
    int gradients = 0;  // that have not arrived
    std::optional<InputBuffer> inputs;
  };
  struct Ready {
    Node* node;
    variable_list inputs;
  };

  // The engine's order: the node made last in forward runs first.
  static bool runs_later(const Ready& a, const Ready& b) {
    return a.node->sequence_nr() < b.node->sequence_nr();
  }

  bool count(const Edge& edge, std::vector<Node*>& found) {
    const auto [entry, fresh] = waiting_.try_emplace(edge.function.get());
    ++entry->second.gradients;
    if (!fresh) return true;
    found.push_back(edge.function.get());
    return is_local(*edge.function);
  }

  void deliver(const edge_list& edges, variable_list& gradients) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      Node* node = edges[i].function.get();
      Waiting& waiting = waiting_.find(node)->second;
      if (!waiting.inputs) waiting.inputs.emplace(node->num_inputs());
      waiting.inputs->add(edges[i].input_nr, std::move(gradients[i]), std::nullopt, std::nullopt,
                          node);
      if (--waiting.gradients > 0) continue;
      ready_.push_back({node, std::move(waiting.inputs->buffer)});
      waiting.inputs.reset();
      std::push_heap(ready_.begin(), ready_.end(), runs_later);
    }
  }

  void evaluate(Node& node, variable_list inputs, bool keep_graph) {
    RECORD_FUNCTION(c10::str("autograd::engine::evaluate_function: ", node.name()),
                    c10::ArrayRef<const c10::IValue>());
    for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
    if (!keep_graph) node.will_release_variables();
    variable_list outputs = node(std::move(inputs));
    validate(node.next_edges(), outputs, &node);
    if (!keep_graph) node.release_variables();
    deliver(node.next_edges(), outputs);
  }

  absl::flat_hash_map<Node*, Waiting> waiting_;
  std::vector<Ready> ready_;  // a heap
};

}  // namespace

bool has_hooks(Node& node) {
  return !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

bool run_local_backward(const edge_list& roots, variable_list& gradients, bool keep_graph) {
  if (torch::autograd::AnomalyMode::is_enabled()) return false;
  LocalBackward backward;
  if (!backward.discover(roots)) return false;
  c10::AutoGradMode no_grad(false);
  backward.run(roots, gradients, keep_graph);
  return true;
}

}  // namespace gpipe::internal
