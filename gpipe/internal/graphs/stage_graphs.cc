#include "gpipe/internal/graphs/stage_graphs.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
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
#include "gpipe/internal/graphs/capture_watch.h"
#include "gpipe/internal/graphs/graph_leaves.h"
#include "gpipe/internal/graphs/graph_log.h"
#include "gpipe/internal/graphs/graph_memory.h"
#include "gpipe/internal/graphs/replay_node.h"
#include "gpipe/internal/graphs/saved_versions.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/tensors/twins.h"
#include "text/shown.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using Key = LayoutKey;

// The most backwards of one slot. Which gradients arrive, and in which layout, hardly ever changes.
constexpr size_t kMostBackwards = 4;

// While it lives, draws take the recorder's generators.
class RecordDrawsScope {
 public:
  RecordDrawsScope(RandomStreams& draws, DrawRecorder& recorder) : draws_(draws) {
    draws_.record(&recorder);
  }
  ~RecordDrawsScope() { draws_.record(nullptr); }
  RecordDrawsScope(const RecordDrawsScope&) = delete;
  RecordDrawsScope& operator=(const RecordDrawsScope&) = delete;

 private:
  RandomStreams& draws_;
};

// An exception's message, without LibTorch's backtrace.
std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
}

// How many stages of the process may still record graphs.
std::atomic<int64_t> may_record{0};

// A number of the calling thread that, unlike its id, is never given to another thread.
int64_t number_of_this_thread() {
  static std::atomic<int64_t> last{0};
  static thread_local const int64_t number = ++last;
  return number;
}

// Adds up each leaf's gradients separately, so that a recording accumulates nothing.
class LeavesApart final : public CellGraph::Walk {
 public:
  // `leaves`: edges to all accumulators that are reached.
  explicit LeavesApart(const edge_list& leaves)
      : Walk(CellDraws()), sums(leaves.size()), leaves_(leaves) {}

  at::Tensor* sum_of(const NodePtr& accumulator, const at::Tensor& /*leaf*/) override {
    const auto place = std::find_if(leaves_.begin(), leaves_.end(),
                                    [&](const Edge& edge) { return edge.function == accumulator; });
    TORCH_INTERNAL_ASSERT(place != leaves_.end());
    return &sums[place - leaves_.begin()];
  }

  std::vector<at::Tensor> sums;  // [leaf]

 private:
  const edge_list& leaves_;
};

// Adds the settings by which LibTorch chooses kernels: a recording has those of its time.
void add_settings(Key& key) {
  at::Context& context = at::globalContext();
  for (const bool setting :
       {context.deterministicAlgorithms(), context.userEnabledCuDNN(), context.benchmarkCuDNN(),
        context.deterministicCuDNN(), context.allowFP16AccumulationCuBLAS(),
        context.allowFP16BF16ReductionMathSDP(), context.userEnabledFlashSDP(),
        context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
        context.userEnabledCuDNNSDP(), context.userEnabledOverrideableSDP(),
        context.userEnabledFA3SDP()}) {
    key.push_back(setting);
  }
  // TF32, by any of its switches.
  for (const at::Float32Op op :
       {at::Float32Op::ALL, at::Float32Op::CONV, at::Float32Op::RNN, at::Float32Op::MATMUL}) {
    key.push_back(static_cast<int64_t>(context.float32Precision(at::Float32Backend::CUDA, op)));
  }
  key.push_back(static_cast<int64_t>(context.allowFP16ReductionCuBLAS()));
  key.push_back(static_cast<int64_t>(context.allowBF16ReductionCuBLAS()));
  key.push_back(static_cast<int64_t>(context.blasPreferredBackend()));
  key.push_back(static_cast<int64_t>(context.linalgPreferredBackend()));
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    key.push_back(static_cast<int64_t>(backend));
  }
}

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

bool KnownThreads::has_this() const {
  return std::find(numbers_.begin(), numbers_.end(), number_of_this_thread()) != numbers_.end();
}

bool KnownThreads::add_this() {
  if (has_this()) return true;
  if (numbers_.size() == kMost) numbers_.erase(numbers_.begin());
  numbers_.push_back(number_of_this_thread());
  return false;
}

struct StageGraphs::BackwardGraph {
  Key layout;               // layout of the gradients that it takes
  variable_list gradients;  // where it reads them; undefined: none
  variable_list results;    // where it writes its results; not owned
  std::unique_ptr<DeviceGraph> graph;
};

// An output of a cell, once, even if it leaves by several ports.
struct StageGraphs::Output {
  size_t port;
  size_t item;
  at::Tensor tensor;  // where the graph writes it
  bool needs_grad;
};

// The graphs of one cell at a time: a forward, and a backward for what the forward has left in the
// slot's memory.
struct StageGraphs::Slot {
  Slot() = default;
  // Memory of the streams that were current at the recordings (inputs, gradients, and the seeds
  // that LibTorch keeps on the device for the generators) may be in use by replays on another
  // stream. The next owner of that memory must come after these.
  ~Slot() {
    for (const c10::Stream& stream : made_on) {
      if (!used_on || stream == *used_on) continue;
      try {
        follow(stream, *used_on);
      } catch (...) {  // the device is broken, or the process ends
      }
    }
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  void note_recording_on(const c10::Stream& stream) {
    if (std::find(made_on.begin(), made_on.end(), stream) == made_on.end()) {
      made_on.push_back(stream);
    }
  }

  c10::SmallVector<c10::Stream, 1> made_on;
  std::optional<c10::Stream> used_on;  // last
  std::atomic<bool> busy{false};       // a cell's backward may still come
  Key places;  // of the inputs in cache lines: the micro-batches of one input may differ
  std::vector<Packet> inputs;  // where the forward takes its inputs; a tensor that comes twice
                               // is one tensor
  std::vector<std::vector<at::Tensor>> fill;  // aliases of the inputs; undefined: nothing to copy
  DrawRecorder draws;
  std::shared_ptr<GraphPool> pool;
  std::unique_ptr<DeviceGraph> forward;
  LayersResult recorded;  // autograd's graph of the forward, with what it has saved
  std::vector<Output> outputs;
  std::vector<ValueKind> kinds;                            // [port]
  std::vector<std::vector<int>> output_numbers;            // [port][item] in outputs; -1: undefined
  std::vector<std::pair<size_t, size_t>> input_gradients;  // port and item
  std::vector<Edge> leaves;                                // their accumulators
  std::vector<at::Tensor> tensors;           // the stage's parameters, then its buffers
  size_t parameters = 0;                     // number of parameters in `tensors`
  std::vector<int64_t> versions;             // [tensor] at the recording
  std::vector<int64_t> versions_in_forward;  // [tensor] at the cell's forward
  std::vector<bool> counters;                // [tensor] counts batches, in a batch norm
  bool has_backward = false;
  std::vector<std::unique_ptr<BackwardGraph>> backwards;
};

// Cells of one kind: shape, mode, and whatever else changes which kernels run.
struct StageGraphs::Entry {
  Key kind;
  int64_t last_used = 0;
  int64_t first_run = 0;  // number of the pipeline's run in which it first came
  int64_t plain_runs = 0;
  KnownThreads warm_threads;  // threads of plain runs
  int64_t draws = 0;
  bool has_loss = false;
  std::vector<std::shared_ptr<Slot>> slots;
};

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
    // The same memory may be seen in another way (set_data, t_).
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
              static_cast<int64_t>(at::autocast::get_autocast_dtype(device_.type())),
              static_cast<int64_t>(c10::get_default_dtype_as_scalartype())};
  add_settings(kind);
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
  // In anomaly mode each node must be seen. If forwards are out of order, each update of running
  // statistics must be seen, too.
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
    const int64_t before = layers.draws.draws();
    LayersResult result = layers.run(inputs, keep_inputs);
    if (run.plan.record) layers.add_outputs(result);
    draws = layers.draws.draws() - before;
    return result;
  };
  // A stage without graphs comes here with each cell, one with graphs only at first.
  if (!usable() && !others_may_record()) return attempt();
  std::vector<Packet> kept;
  if (!keep_inputs) kept = inputs;
  const std::vector<int64_t> before = versions_of(tensors_);
  const int64_t given = layers.draws.given_draws();
  // A repetition must start from the same values. Updates of statistics that wait in a log would be
  // there twice.
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
    return versions_of(tensors_) == before && layers.draws.given_draws() == given;
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

std::shared_ptr<StageGraphs::Slot> StageGraphs::record(const RunContext& run, Entry& entry,
                                                       const Key& places,
                                                       const std::vector<Packet>& inputs,
                                                       const Layers& layers) {
  std::shared_ptr<Slot> slot;
  std::string place;
  try {
    record_with_all_memory(
        *graphs_, [&] { slot = record_forward(run, entry, places, inputs, layers, place); });
  } catch (const std::exception& error) {
    give_up(place + " cannot be recorded: " + message_of(error));
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
                                                               const Entry& entry, Key places,
                                                               const std::vector<Packet>& inputs,
                                                               const Layers& layers,
                                                               std::string& place) {
  auto slot = std::make_shared<Slot>();
  slot->places = std::move(places);
  slot->has_backward = run.plan.record && checkpoint_phase() != CheckpointPhase::kCheckpointing;
  place = "it";
  // What the log of updates takes must be known after each micro-batch.
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
  Twins<at::Tensor> twins;
  std::vector<at::Tensor> of_stage = tensors_;
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
  slot->inputs = inputs;
  for (Packet& packet : slot->inputs) {
    packet.ready.clear();
    slot->fill.emplace_back();
    for (Item& item : packet.items) {
      slot->fill.back().emplace_back();
      if (!item.tensor.defined()) continue;
      if (const at::Tensor* const twin = twins.find(item.tensor)) {
        item.tensor = *twin;
      } else {
        // In memory made in inference mode, changes in place by the layers would not be counted.
        const c10::InferenceMode off(false);
        at::Tensor memory = memory_like(item.tensor);
        twins.add(item.tensor, memory);
        slot->fill.back().back() = alias_to_fill(memory);
        item.tensor = std::move(memory);
      }
      item.mark_version();
      of_stage.push_back(item.tensor);
    }
  }
  for (int64_t k = 0; k < entry.draws; ++k) {
    slot->draws.generators.push_back(at::globalContext().defaultGenerator(device_).clone());
  }
  // The outputs of a checkpointed forward are copied at once, and nothing else of it is needed.
  slot->pool = slot->has_backward ? graphs_->make_pool(device_) : scratch();
  slot->forward = graphs_->make_graph(device_, slot->pool, slot->draws.generators);
  const std::vector<int64_t> before = versions_of(tensors_);
  record_graph(*slot->forward, side_stream(), [&] {
    const CaptureWatch watch(device_, of_stage);
    const RecordDrawsScope draws(layers.draws, slot->draws);
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

// A replay also makes the layers' changes in place, but no version counter shows them.
void StageGraphs::check_unchanged(const Slot& slot, const std::vector<int64_t>& before) const {
  for (size_t k = 0; k < tensors_.size(); ++k) {
    if (slot.counters[k]) continue;  // no backward needs it
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
      // A change in place of one output would change the other one, but not its copy.
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
      // If a tensor comes twice, the first item has the gradient.
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
  const GraphLeaves found = leaves_of(roots, slot.recorded.graph.own_nodes());
  TORCH_CHECK(found.reason.empty(), found.reason);
  for (const GraphLeaves::Leaf& leaf : found.leaves) {
    const ModelState::Parameter* parameter = run.plan.model.find(leaf.tensor);
    TORCH_CHECK(parameter != nullptr, "it uses a leaf that no layer has registered");
    TORCH_CHECK(parameter->stages.size() == 1, "other stages use the parameter ",
                text::in_quotes(parameter->name), ", too");
    // The sum would begin with the loss's own term, and so be added up in another order.
    TORCH_CHECK(!entry.has_loss || leaf.uses == 1, "the parameter ",
                text::in_quotes(parameter->name),
                " is used several times in the stage that computes the loss");
    slot.leaves.push_back(leaf.accumulator);
  }
  slot.recorded.outputs.clear();
  if (!slot.has_backward) slot.recorded.graph = CellGraph();
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

  use_current_stream();
  slot->used_on = stream_;
  slot->versions_in_forward = versions_of(slot->tensors);
  {
    c10::NoGradGuard no_grad;
    for (size_t k = 0; k < inputs.size(); ++k) {
      for (size_t n = 0; n < inputs[k].items.size(); ++n) {
        if (slot->fill[k][n].defined()) fill_memory(slot->fill[k][n], inputs[k].items[n].tensor);
      }
    }
    for (size_t d = 0; d < slot->draws.draws.size(); ++d) {
      at::Generator& generator = slot->draws.generators[d];
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_current_seed(RandomStreams::seed_of_draw(
          run.plan.step_seed, run.plan.number_of(micro_batch), slot->draws.draws[d]));
    }
    try {
      slot->forward->replay();
    } catch (const std::exception& error) {
      give_up("a replay failed: " + message_of(error));
      throw;
    }
    ++use_.replayed;
  }
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
  result.graph.begin();
  const bool any_grad = std::any_of(slot->outputs.begin(), slot->outputs.end(),
                                    [](const Output& output) { return output.needs_grad; });
  if (run.plan.record && any_grad) {
    slot->busy.store(true, std::memory_order_relaxed);
    // The slot is free again when the node is gone, with the cell's graph.
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
  result.graph.end_layers_as_one(layers.count);
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

StageGraphs::variable_list StageGraphs::run_backward(Slot& slot,
                                                     const variable_list& gradients) const {
  const SavedVersionsScope versions(slot.tensors, slot.versions, slot.versions_in_forward);
  std::vector<Packet> packets(slot.output_numbers.size());
  for (size_t k = 0; k < packets.size(); ++k)
    packets[k].items.resize(slot.output_numbers[k].size());
  size_t next = 0;
  for (const Output& output : slot.outputs) {
    if (output.needs_grad) packets[output.port].items[output.item].tensor = gradients[next++];
  }
  LeavesApart walk(slot.leaves);
  walk.settings.keep_graph = true;
  int64_t layer = -1;
  std::vector<Packet> of_inputs =
      slot.recorded.graph.backward(std::move(packets), Roots(), BackwardPart::kWhole, walk, layer);
  variable_list results;
  for (const auto& [port, item] : slot.input_gradients) {
    results.push_back(of_inputs.empty() ? at::Tensor()
                                        : std::move(of_inputs[port].items[item].tensor));
  }
  for (at::Tensor& sum : walk.sums) results.push_back(std::move(sum));
  return results;
}

StageGraphs::BackwardGraph* StageGraphs::record_backward(Slot& slot,
                                                         const variable_list& gradients) {
  std::unique_ptr<BackwardGraph> backward_graph;
  try {
    record_with_all_memory(*graphs_, [&] { backward_graph = recorded_backward(slot, gradients); });
  } catch (const std::exception& error) {
    give_up("its backward cannot be recorded: " + message_of(error));
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
  // The results are freed after the recording, so that nothing in it may take their memory.
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

StageGraphs::variable_list StageGraphs::backward(Slot& slot, variable_list gradients) {
  c10::NoGradGuard no_grad;
  use_current_stream();
  slot.used_on = stream_;
  // A forward that is not replayed counts a batch, too.
  for (size_t k = slot.parameters; k < slot.tensors.size(); ++k) {
    if (slot.counters[k]) slot.versions_in_forward[k] = version_of(slot.tensors[k]);
  }
  // If a parameter was changed since the cell's forward, autograd has to find out whether that
  // matters.
  const bool unchanged = versions_of(slot.tensors) == slot.versions_in_forward;
  bool records = usable() && unchanged && is_warm_ && slot.backwards.size() < kMostBackwards;
  Key layout;
  for (const at::Tensor& gradient : gradients) {
    records = records && (!gradient.defined() || can_be_filled(gradient));
    add_layout(layout, gradient);
    add_place(layout, gradient);
  }
  BackwardGraph* graph = nullptr;
  for (const auto& candidate : slot.backwards) {
    if (unchanged && candidate->layout == layout) graph = candidate.get();
  }
  if (graph == nullptr && records) graph = record_backward(slot, gradients);
  if (graph == nullptr) {
    variable_list results = run_backward(slot, gradients);
    for (at::Tensor& result : results) {
      if (shares_storage(result)) result = copy_in_layout(result);
    }
    return results;
  }
  for (size_t k = 0; k < gradients.size(); ++k) {
    if (gradients[k].defined()) fill_memory(graph->gradients[k], gradients[k]);
  }
  try {
    graph->graph->replay();
  } catch (const std::exception& error) {
    give_up("a replay failed: " + message_of(error));
    throw;
  }
  ++use_.replayed;
  variable_list results;
  for (size_t k = 0; k < graph->results.size(); ++k) {
    const at::Tensor& result = graph->results[k];
    const size_t inputs = slot.input_gradients.size();
    // A hook that was added since the forward may keep what it is given.
    const bool lent = lend_ && k >= inputs && !has_hooks(*slot.leaves[k - inputs].function);
    results.push_back(!result.defined() || lent
                          ? detached_alias(result)
                          : despite_recordings(*graphs_, [&] { return copy_out(result); }));
  }
  return results;
}

}  // namespace gpipe::internal
