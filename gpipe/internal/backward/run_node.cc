#include "gpipe/internal/backward/run_node.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/internal/backward/engine_node.h"
#include "gpipe/internal/tensors/transfer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::edge_list;
using torch::autograd::InputMetadata;
using torch::autograd::Node;
using torch::autograd::variable_list;

std::atomic<ThrownTaker> thrown_taker{nullptr};

// Whether `gradient` already has the form that the node expects, which is the usual case. Then
// validate_outputs(), which takes long to find that out, is not called.
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

// While this object lives, the stream on which an accelerator's node computed in the forward is
// current, as in autograd. Usually that is the stage's own stream, and nothing happens. If a layer
// has used a stream of its own, that stream waits for the stage's stream, and afterwards the
// stage's stream waits for the layer's.
class NodeStreamScope {
 public:
  NodeStreamScope(Node& node, const variable_list& inputs) {
    const c10::Device device = node.device();
    if (device.is_cpu()) return;
    const std::optional<c10::Stream> stream = node.stream();
    if (!stream) return;
    here_ = current_stream(device);
    if (*stream == *here_) {
      here_.reset();
      if (c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) scope_.emplace(*stream);
      return;
    }
    follow(*stream, *here_);
    for (const at::Tensor& input : inputs) use_on(input, *stream);
    scope_.emplace(*stream);
  }

  // Called when the node is done: the stage's stream waits for the node's stream.
  void leave(const variable_list& outputs) {
    if (here_) {
      follow(*here_, current_stream(here_->device()));
      for (const at::Tensor& output : outputs) use_on(output, *here_);
    }
    scope_.reset();
  }

 private:
  std::optional<c10::Stream> here_;
  std::optional<StreamScope> scope_;
};

variable_list run_here(Node& node, variable_list inputs, bool keep_graph) {
  RECORD_FUNCTION(c10::str("autograd::engine::evaluate_function: ", node.name()),
                  c10::ArrayRef<const c10::IValue>());
  for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
  if (!keep_graph) node.will_release_variables();
  variable_list outputs = node(std::move(inputs));
  validate_gradients(node.next_edges(), outputs, &node);
  if (!keep_graph) node.release_variables();
  return outputs;
}

}  // namespace

void validate_gradients(const edge_list& edges, variable_list& gradients, const Node* from) {
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

variable_list run_node(Node& node, variable_list inputs, bool in_engine, bool keep_graph) {
  NodeStreamScope stream(node, inputs);
  try {
    variable_list outputs = in_engine ? run_in_engine(node, std::move(inputs), keep_graph)
                                      : run_here(node, std::move(inputs), keep_graph);
    stream.leave(outputs);
    return outputs;
  } catch (const std::exception& error) {
    if (const ThrownTaker taker = thrown_taker) taker(error);
    throw;
  }
}

void set_thrown_taker(ThrownTaker taker) { thrown_taker = taker; }

}  // namespace gpipe::internal
