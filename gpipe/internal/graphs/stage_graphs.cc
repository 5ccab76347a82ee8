#include "gpipe/internal/graphs/stage_graphs.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/backward/node_kinds.h"
#include "gpipe/internal/graphs/graph_log.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/replay_node.h"
#include "gpipe/internal/graphs/saved_versions.h"
#include "gpipe/internal/graphs/stage_graphs_slot.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/tensors/twins.h"
#include "gpipe/internal/threads/process_settings.h"
#include "text/exception_text.h"
#include "text/shown.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using Key = LayoutKey;

// How many stages of the process may still record graphs.
std::atomic<int64_t> may_record{0};

// `own`: all of the layers' parameters.
bool uses_parameters_of_others(const std::vector<Layer>& layers,
                               const std::vector<at::Tensor>& own) {
  for (const Layer& layer : layers) {
    for (const auto& module : layer.module.ptr()->modules()) {
      const auto* const tied = dynamic_cast<const TiedLayer*>(module.get());
      if (tied == nullptr) continue;
      for (const at::Tensor& parameter : tied->tied_parameters()) {
        const auto is_it = [&](const at::Tensor& other) { return are_twins(other, parameter); };
        if (std::none_of(own.begin(), own.end(), is_it)) return true;
      }
    }
  }
  return false;
}

}  // namespace

StageGraphs::StageGraphs(int64_t stage, c10::Device device)
    : stage_(stage), device_(device), graphs_(graph_device(device.type())) {
  ++may_record;
  if (graphs_ == nullptr) give_up(why_no_graphs(device));
}

StageGraphs::~StageGraphs() {
  if (usable()) --may_record;
  if (side_stream_) give_back_stream_for_recordings(*side_stream_);
}

void StageGraphs::give_up(const std::string& reason) {
  if (!usable()) return;
  --may_record;
  use_.reason = reason;
  entries_.clear();
  scratch_.reset();
  log_without_graphs(stage_, reason);
}

void StageGraphs::begin_run(const std::vector<Layer>& layers) {
  if (!usable() && !others_may_record()) return;
  ++runs_;
  Key state;
  std::vector<at::Tensor> tensors;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    state.push_back(reinterpret_cast<intptr_t>(tensor.unsafeGetTensorImpl()));
    const c10::StorageImpl* storage = storage_of(tensor);
    state.push_back(storage == nullptr ? 0 : reinterpret_cast<intptr_t>(tensor.const_data_ptr()));
    state.push_back(tensor.requires_grad() ? 1 : 0);
    // A tensor may view the same memory in another layout now (set_data, t_).
    add_layout(state, tensor);
    tensors.push_back(tensor);
  };
  for (const Layer& layer : layers) {
    const std::shared_ptr<torch::nn::Module> module = layer.module.ptr();
    for (const auto& part : module->modules()) {
      state.push_back(reinterpret_cast<intptr_t>(part.get()));
      state.push_back(part->is_training() ? 1 : 0);
    }
    for (const at::Tensor& tensor : module->parameters()) add(tensor);
  }
  const size_t parameters = tensors.size();
  for (const Layer& layer : layers) {
    for (const at::Tensor& tensor : layer.module.ptr()->buffers()) add(tensor);
  }
  if (state == state_) return;
  state_ = std::move(state);
  parameters_ = parameters;
  tensors_ = std::move(tensors);
  entries_.clear();
  if (uses_parameters_of_others(layers, tensors_)) {
    give_up("it uses a parameter of another stage (TiedLayer)");
  }
}

StageGraphs::Entry* StageGraphs::entry_for(const RunContext& run, const std::vector<Packet>& inputs,
                                           bool has_loss, Key& places) {
  Key kind = {checkpoint_phase() == CheckpointPhase::kCheckpointing,
              checkpoint_phase() == CheckpointPhase::kRecomputing,
              run.plan.record,
              has_loss,
              c10::InferenceMode::is_enabled(),
              at::autocast::is_autocast_enabled(device_.type()),
              static_cast<int64_t>(at::autocast::get_autocast_dtype(device_.type()))};
  // LibTorch chooses kernels by these settings, and a recording keeps the kernels that were chosen.
  for (const ProcessSetting& setting : process_settings()) kind.push_back(setting.value);
  Twins<int64_t> twins;
  int64_t inputs_so_far = 0;
  for (const Packet& packet : inputs) {
    kind.push_back(static_cast<int64_t>(packet.kind));
    kind.push_back(static_cast<int64_t>(packet.items.size()));
    for (const Item& item : packet.items) {
      const at::Tensor& tensor = item.tensor;
      if (tensor.defined() && (tensor.device() != device_ || !can_be_filled(tensor))) {
        give_up("an input is not a dense tensor on " + device_.str());
        return nullptr;
      }
      const int64_t* const twin = twins.find(tensor);
      kind.push_back(twin != nullptr ? *twin : inputs_so_far);
      if (twin == nullptr) twins.add(tensor, inputs_so_far);
      ++inputs_so_far;
      kind.push_back(item.needs_grad);
      kind.push_back(item.read_only);
      kind.push_back(item.shared);
      add_layout(kind, tensor);
      add_place(places, tensor);
    }
  }
  ++clock_;
  for (const auto& entry : entries_) {
    if (entry->kind != kind) continue;
    entry->last_used = clock_;
    return entry.get();
  }
  if (entries_.size() == kMostKinds) {
    if (++drops_ > kMostDrops) {
      give_up("the shapes of its inputs change too often");
      return nullptr;
    }
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(),
                         [](const auto& a, const auto& b) { return a->last_used < b->last_used; }));
  }
  entries_.push_back(std::make_unique<Entry>());
  Entry& entry = *entries_.back();
  entry.kind = std::move(kind);
  entry.last_used = clock_;
  entry.first_run = runs_;
  entry.has_loss = has_loss;
  return &entry;
}

LayersResult StageGraphs::run(const RunContext& run, int64_t micro_batch,
                              std::vector<Packet>& inputs, bool keep_inputs, bool has_loss,
                              const Layers& layers) {
  int64_t draws = 0;
  const auto run_plainly = [&] {
    return this->run_plainly(run, inputs, keep_inputs, layers, draws);
  };
  // In anomaly mode autograd must see each node. If forwards are out of order, each update of
  // running statistics must be seen, too. A replay shows neither.
  const bool updates_later = !run.forwards_ascend[stage_] && tensors_.size() > parameters_;
  if (!usable() || updates_later || torch::autograd::AnomalyMode::is_enabled()) {
    return run_plainly();
  }
  Key places;
  Entry* const entry = entry_for(run, inputs, has_loss, places);
  if (entry == nullptr) return run_plainly();
  std::shared_ptr<Slot> slot;
  for (const std::shared_ptr<Slot>& candidate : entry->slots) {
    const bool fits =
        !candidate->busy.load(std::memory_order_acquire) && candidate->places == places;
    if (!fits) continue;
    slot = candidate;
    break;
  }
  const bool is_cold =
      slot == nullptr && (entry->plain_runs < kPlainRuns || entry->first_run == runs_ ||
                          !entry->warm_threads.has_this());
  if (is_cold) {
    LayersResult result = run_plainly();
    entry->draws = draws;
    ++entry->plain_runs;
    entry->warm_threads.add_this();
    return result;
  }
  if (slot != nullptr) check_leaves(run, *slot);
  if (!usable()) return run_plainly();
  if (slot == nullptr) slot = record(run, *entry, places, inputs, layers);
  if (slot == nullptr) return run_plainly();
  return replay(run, micro_batch, inputs, keep_inputs, slot, layers);
}

LayersResult StageGraphs::run_plainly(const RunContext& run, std::vector<Packet>& inputs,
                                      bool keep_inputs, const Layers& layers, int64_t& draws) {
  const auto attempt = [&] {
    const int64_t before = layers.random_streams.draws();
    LayersResult result = layers.run(inputs, keep_inputs);
    if (run.plan.record) layers.add_outputs(result);
    draws = layers.random_streams.draws() - before;
    return result;
  };
  // A stage without graphs calls this function for each cell, a stage with graphs only at first.
  if (!usable() && !others_may_record()) return attempt();
  std::vector<Packet> kept;
  if (!keep_inputs) kept = inputs;
  const std::vector<int64_t> before = versions_of(tensors_);
  const int64_t given = layers.random_streams.given_draws();
  // Repeating is allowed only if it starts from the same values. Updates of statistics that wait in
  // a log would be in the log twice.
  const auto may_repeat = [&] {
    if (run.plan.defer_batch_norm || !run.forwards_ascend[stage_]) return false;
    for (const at::Tensor& tensor : tensors_) {
      if (run.tracked.must_wait(tensor)) return false;
    }
    const std::vector<Packet>& first = keep_inputs ? inputs : kept;
    for (const Packet& packet : first) {
      for (const Item& item : packet.items) {
        if (item.is_changed()) return false;
      }
    }
    return versions_of(tensors_) == before && layers.random_streams.given_draws() == given;
  };
  return despite_recordings(
      *graphs_,
      [&] {
        if (!keep_inputs) inputs = kept;
        return attempt();
      },
      may_repeat);
}

// Checks what may have changed since the recording although the stage's own parameters have not.
void StageGraphs::check_leaves(const RunContext& run, const Slot& slot) {
  for (const Edge& edge : slot.leaves) {
    if (has_hooks(*edge.function)) return give_up("a parameter has a hook");
    const auto& leaf = static_cast<torch::autograd::AccumulateGrad&>(*edge.function).variable;
    const ModelState::Parameter* parameter = run.plan.model.find(leaf);
    if (parameter != nullptr && parameter->stages.size() > 1) {
      return give_up("other stages use the parameter " + text::in_quotes(parameter->name) +
                     ", too");
    }
  }
}

void StageGraphs::use_current_stream() {
  const c10::Stream here = current_stream(device_);
  if (stream_ && *stream_ != here) {
    follow(here, *stream_);
    for (const auto& entry : entries_) {
      for (const std::shared_ptr<Slot>& slot : entry->slots) {
        for (const auto& port : slot->fill) {
          for (const at::Tensor& tensor : port) {
            if (tensor.defined()) use_on(tensor, here);
          }
        }
        for (const auto& backward : slot->backwards) {
          for (const at::Tensor& tensor : backward->gradients) {
            if (tensor.defined()) use_on(tensor, here);
          }
        }
      }
    }
  }
  stream_ = here;
}

bool StageGraphs::others_may_record() const { return graphs_ != nullptr && may_record > 0; }

const c10::Stream& StageGraphs::side_stream() {
  if (side_stream_ && *side_stream_ == current_stream(device_)) {
    give_back_stream_for_recordings(*side_stream_);
    side_stream_.reset();
  }
  if (!side_stream_) side_stream_ = take_stream_for_recordings(device_);
  const StreamScope scope(*side_stream_);
  graphs_->prepare_stream();
  return *side_stream_;
}

const std::shared_ptr<GraphPool>& StageGraphs::scratch() {
  if (scratch_ == nullptr) scratch_ = graphs_->make_pool(device_);
  return scratch_;
}

void StageGraphs::replay_forward(const RunContext& run, int64_t micro_batch,
                                 const std::vector<Packet>& inputs, Slot& slot) {
  use_current_stream();
  slot.used_on = stream_;
  slot.versions_in_forward = versions_of(slot.tensors);
  c10::NoGradGuard no_grad;
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (size_t n = 0; n < inputs[k].items.size(); ++n) {
      if (slot.fill[k][n].defined()) fill_memory(slot.fill[k][n], inputs[k].items[n].tensor);
    }
  }
  for (size_t d = 0; d < slot.recorder.draws.size(); ++d) {
    at::Generator& generator = slot.recorder.generators[d];
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(RandomStreams::seed_of_draw(
        run.plan.step_seed, run.plan.number_of(micro_batch), slot.recorder.draws[d]));
  }
  try {
    slot.forward->replay();
  } catch (const std::exception& error) {
    give_up("a replay failed: " + text::message_of(error));
    throw;
  }
  ++use_.replayed;
}

LayersResult StageGraphs::replay(const RunContext& run, int64_t micro_batch,
                                 std::vector<Packet>& inputs, bool keep_inputs,
                                 const std::shared_ptr<Slot>& slot, const Layers& layers) {
  LayersResult result;
  edge_list edges;
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (size_t n = 0; n < inputs[k].items.size(); ++n) {
      const Item& item = inputs[k].items[n];
      const at::Tensor alias = detached_alias(item.tensor);
      const bool wanted = run.plan.record && item.needs_grad && slot->fill[k][n].defined();
      result.graph.inputs().add(k, alias, wanted);
      if (wanted) edges.push_back(torch::autograd::impl::gradient_edge(alias));
    }
  }
  edges.insert(edges.end(), slot->leaves.begin(), slot->leaves.end());

  replay_forward(run, micro_batch, inputs, *slot);
  if (!keep_inputs) {
    for (Packet& packet : inputs) {
      for (Item& item : packet.items) item.tensor = at::Tensor();
    }
  }

  std::vector<at::Tensor> outputs;
  {
    c10::NoGradGuard no_grad;
    for (const Output& output : slot->outputs) {
      outputs.push_back(despite_recordings(*graphs_, [&] { return copy_out(output.tensor); }));
    }
  }
  result.graph.layers().begin();
  const bool any_grad = std::any_of(slot->outputs.begin(), slot->outputs.end(),
                                    [](const Output& output) { return output.needs_grad; });
  if (run.plan.record && any_grad) {
    slot->busy.store(true, std::memory_order_relaxed);
    // The slot is free again when the node is destroyed with the cell's graph.
    std::shared_ptr<Slot> lease(
        slot.get(), [slot](Slot* held) { held->busy.store(false, std::memory_order_release); });
    auto node = make_node<ReplayNode>(
        std::move(edges),
        [self = shared_from_this(), lease = std::move(lease)](variable_list gradients) {
          return self->backward(*lease, std::move(gradients));
        });
    for (size_t u = 0; u < outputs.size(); ++u) {
      if (slot->outputs[u].needs_grad) torch::autograd::set_history(outputs[u], node);
    }
  }
  result.graph.layers().end_layers_as_one(layers.count);
  for (size_t k = 0; k < slot->output_numbers.size(); ++k) {
    Value value{slot->kinds[k], {}};
    for (const int number : slot->output_numbers[k]) {
      value.tensors.push_back(number < 0 ? at::Tensor() : outputs[static_cast<size_t>(number)]);
    }
    result.outputs.push_back(std::move(value));
  }
  if (run.plan.record) layers.add_outputs(result);
  return result;
}

}  // namespace gpipe::internal
