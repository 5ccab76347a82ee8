// StageGraphs, as far as it records: a cell's forward, and later a backward for it.
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/graphs/capture_watch.h"
#include "gpipe/internal/graphs/graph_leaves.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/saved_versions.h"
#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/graphs/stage_graphs_slot.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/tensors/twins.h"
#include "text/exception_text.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;

// While a RecordDrawsScope lives, draws take the recorder's generators.
class RecordDrawsScope {
 public:
  RecordDrawsScope(RandomStreams& streams, DrawRecorder& recorder) : streams_(streams) {
    streams_.record(&recorder);
  }
  ~RecordDrawsScope() { streams_.record(nullptr); }
  RecordDrawsScope(const RecordDrawsScope&) = delete;
  RecordDrawsScope& operator=(const RecordDrawsScope&) = delete;

 private:
  RandomStreams& streams_;
};

}  // namespace

void StageGraphs::Slot::make_inputs(const std::vector<Packet>& like,
                                    std::vector<at::Tensor>& memory) {
  Twins<at::Tensor> twins;
  inputs = like;
  for (Packet& packet : inputs) {
    packet.ready.clear();
    fill.emplace_back();
    for (Item& item : packet.items) {
      fill.back().emplace_back();
      if (!item.tensor.defined()) continue;
      if (const at::Tensor* const twin = twins.find(item.tensor)) {
        item.tensor = *twin;
      } else {
        // Inference mode is off, because a tensor that is made in it does not count the layers'
        // changes in place.
        const c10::InferenceMode off(false);
        at::Tensor made = memory_like(item.tensor);
        twins.add(item.tensor, made);
        fill.back().back() = alias_to_fill(made);
        item.tensor = std::move(made);
      }
      item.mark_version();
      memory.push_back(item.tensor);
    }
  }
}

std::shared_ptr<StageGraphs::Slot> StageGraphs::record(const RunContext& run, Entry& entry,
                                                       const LayoutKey& places,
                                                       const std::vector<Packet>& inputs,
                                                       const Layers& layers) {
  std::shared_ptr<Slot> slot;
  std::string place;
  try {
    record_with_all_memory(
        *graphs_, [&] { slot = record_forward(run, entry, places, inputs, layers, place); });
  } catch (const std::exception& error) {
    give_up(place + " cannot be recorded: " + text::message_of(error));
    return nullptr;
  } catch (...) {
    give_up(place + " cannot be recorded: it threw something else than an exception");
    return nullptr;
  }
  ++use_.recorded;
  entry.slots.push_back(slot);
  return slot;
}

std::shared_ptr<StageGraphs::Slot> StageGraphs::record_forward(const RunContext& run,
                                                               const Entry& entry, LayoutKey places,
                                                               const std::vector<Packet>& inputs,
                                                               const Layers& layers,
                                                               std::string& place) {
  auto slot = std::make_shared<Slot>();
  slot->places = std::move(places);
  slot->has_backward = run.plan.record && checkpoint_phase() != CheckpointPhase::kCheckpointing;
  place = "it";
  // A log of deferred updates must know after each micro-batch what to take, which a replay does
  // not tell.
  TORCH_CHECK(!run.plan.defer_batch_norm ||
                  std::none_of(tensors_.begin(), tensors_.end(),
                               [&](const at::Tensor& t) { return run.tracked.counter(t); }),
              "batch norms are deferred");
  for (const at::Tensor& tensor : tensors_) {
    TORCH_CHECK(!run.tracked.must_wait(tensor), "several stages share running statistics");
    TORCH_CHECK(tensor.device() == device_, "a parameter or buffer is on ", tensor.device());
  }
  use_current_stream();
  slot->note_recording_on(*stream_);
  // The accumulators of the parameters belong to the stream on which they are made, and live as
  // long as a graph of autograd leads to them. If they were made on the side stream, each backward
  // would be ordered with it by events, and .grad would lie in its memory.
  std::vector<NodePtr> accumulators;
  for (size_t k = 0; run.plan.record && k < parameters_; ++k) {
    const at::Tensor& parameter = tensors_[k];
    if (parameter.requires_grad() && parameter.is_leaf()) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
    }
  }
  std::vector<at::Tensor> of_stage = tensors_;
  slot->make_inputs(inputs, of_stage);
  for (int64_t k = 0; k < entry.draws; ++k) {
    slot->recorder.generators.push_back(at::globalContext().defaultGenerator(device_).clone());
  }
  // The outputs of a checkpointed forward are copied at once, and nothing else in its memory is
  // needed. So it shares the scratch pool.
  slot->pool = slot->has_backward ? graphs_->make_pool(device_) : scratch();
  slot->forward = graphs_->make_graph(device_, slot->pool, slot->recorder.generators);
  const std::vector<int64_t> before = versions_of(tensors_);
  record_graph(*slot->forward, side_stream(), [&] {
    const CaptureWatch watch(device_, of_stage);
    const RecordDrawsScope draws(layers.random_streams, slot->recorder);
    std::vector<Packet> packets = slot->inputs;
    try {
      slot->recorded = layers.run(packets, /*keep_inputs=*/false);
    } catch (...) {
      place = layers.current();
      throw;
    }
    if (run.plan.record) layers.add_outputs(slot->recorded);
    watch.check();
  });
  for (const at::Tensor& tensor : tensors_) {
    slot->counters.push_back(static_cast<bool>(run.tracked.counter(tensor)));
  }
  check_unchanged(*slot, before);
  slot->tensors = tensors_;
  slot->parameters = parameters_;
  slot->versions = versions_of(tensors_);
  examine(run, entry, *slot);
  return slot;
}

// A replay repeats the layers' changes in place, but no version counter would show them. So the
// layers must make none.
void StageGraphs::check_unchanged(const Slot& slot, const std::vector<int64_t>& before) const {
  for (size_t k = 0; k < tensors_.size(); ++k) {
    if (slot.counters[k]) continue;  // no backward needs a counter
    TORCH_CHECK(version_of(tensors_[k]) == before[k], "it changes a ",
                k < parameters_ ? "parameter" : "buffer", " in place");
  }
  if (stage_ != 0) return;
  for (const Packet& packet : slot.inputs) {
    for (const Item& item : packet.items) {
      TORCH_CHECK(!item.tensor.defined() || !item.is_changed(),
                  "it changes the caller's input in place");
    }
  }
}

void StageGraphs::examine(const RunContext& run, const Entry& entry, Slot& slot) const {
  Twins<int> twins;
  for (size_t k = 0; k < slot.recorded.outputs.size(); ++k) {
    slot.output_numbers.emplace_back();
    slot.kinds.push_back(slot.recorded.outputs[k].kind);
    const std::vector<at::Tensor>& tensors = slot.recorded.outputs[k].tensors;
    for (size_t n = 0; n < tensors.size(); ++n) {
      const at::Tensor& tensor = tensors[n];
      if (!tensor.defined()) {
        slot.output_numbers.back().push_back(-1);
        continue;
      }
      TORCH_CHECK(tensor.device() == device_ && tensor.layout() == c10::kStrided &&
                      !tensor.is_conj() && !tensor.is_neg(),
                  "an output is not a dense tensor on ", device_);
      if (const int* const twin = twins.find(tensor)) {
        slot.output_numbers.back().push_back(*twin);
        continue;
      }
      // If the layers' outputs shared memory, a change in place of one would change the other, but
      // their copies do not share.
      const auto overlapping = [&](const Output& output) {
        return storage_of(output.tensor) == storage_of(tensor);
      };
      TORCH_CHECK(std::none_of(slot.outputs.begin(), slot.outputs.end(), overlapping),
                  "two outputs share memory");
      const auto number = static_cast<int>(slot.outputs.size());
      twins.add(tensor, number);
      slot.output_numbers.back().push_back(number);
      slot.outputs.push_back(
          {k, n, detached_alias(tensor), run.plan.record && tensor.requires_grad()});
    }
  }
  for (size_t k = 0; k < slot.inputs.size(); ++k) {
    for (size_t n = 0; n < slot.inputs[k].items.size(); ++n) {
      const bool wanted = run.plan.record && slot.inputs[k].items[n].needs_grad;
      // If a tensor comes twice, only its first item gets the gradient.
      if (wanted && slot.fill[k][n].defined()) slot.input_gradients.emplace_back(k, n);
    }
  }
  if (!run.plan.record) {
    slot.recorded = LayersResult{std::move(slot.recorded.outputs), {}, {}, {}, {}};
    return;
  }
  std::vector<Edge> roots;
  for (const Value& value : slot.recorded.outputs) {
    for (const at::Tensor& tensor : value.tensors) {
      if (tensor.defined() && tensor.requires_grad()) {
        roots.push_back(torch::autograd::impl::gradient_edge(tensor));
      }
    }
  }
  const GraphLeaves found = leaves_of(roots, slot.recorded.graph.layers().own_nodes());
  TORCH_CHECK(found.reason.empty(), found.reason);
  for (const GraphLeaves::Leaf& leaf : found.leaves) {
    const ModelState::Parameter* parameter = run.plan.model.find(leaf.tensor);
    TORCH_CHECK(parameter != nullptr, "it uses a leaf that no layer has registered");
    TORCH_CHECK(parameter->stages.size() == 1, "other stages use the parameter ",
                text::in_quotes(parameter->name), ", too");
    // With a loss, the sum of this parameter's gradients would begin with the loss's own term, and
    // so be added up in another order.
    TORCH_CHECK(!entry.has_loss || leaf.uses == 1, "the parameter ",
                text::in_quotes(parameter->name),
                " is used several times in the stage that computes the loss");
    slot.leaves.push_back(leaf.accumulator);
  }
  slot.recorded.outputs.clear();
  if (!slot.has_backward) slot.recorded.graph = CellGraph();
}

StageGraphs::BackwardGraph* StageGraphs::record_backward(Slot& slot,
                                                         const variable_list& gradients) {
  std::unique_ptr<BackwardGraph> backward_graph;
  try {
    record_with_all_memory(*graphs_, [&] { backward_graph = recorded_backward(slot, gradients); });
  } catch (const std::exception& error) {
    give_up("its backward cannot be recorded: " + text::message_of(error));
    return nullptr;
  } catch (...) {
    give_up("its backward cannot be recorded: it threw something else than an exception");
    return nullptr;
  }
  ++use_.recorded;
  slot.backwards.push_back(std::move(backward_graph));
  return slot.backwards.back().get();
}

std::unique_ptr<StageGraphs::BackwardGraph> StageGraphs::recorded_backward(
    Slot& slot, const variable_list& gradients) {
  auto backward_graph = std::make_unique<BackwardGraph>();
  for (const at::Tensor& gradient : gradients) {
    add_layout(backward_graph->layout, gradient);
    add_place(backward_graph->layout, gradient);
    backward_graph->gradients.push_back(gradient.defined() ? memory_like(gradient) : gradient);
  }
  slot.note_recording_on(*stream_);
  backward_graph->graph = graphs_->make_graph(device_, scratch(), {});
  // The results are freed after the recording, so that nothing in the recording may take their
  // memory.
  variable_list results;
  record_graph(*backward_graph->graph, side_stream(), [&] {
    const CaptureWatch watch;
    results = run_backward(slot, backward_graph->gradients);
  });
  for (const at::Tensor& result : results) {
    TORCH_CHECK(
        !result.defined() || (result.layout() == c10::kStrided && result.device() == device_),
        "a gradient is not a dense tensor on ", device_);
    backward_graph->results.push_back(unowned_alias(result));
  }
  return backward_graph;
}

}  // namespace gpipe::internal
