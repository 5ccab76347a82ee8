#include "gpipe/internal/stage/stage.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/boundary/arriving.h"
#include "gpipe/internal/boundary/staying.h"
#include "gpipe/internal/cell/late_checks.h"
#include "gpipe/internal/cell/recompute_check.h"
#include "gpipe/internal/graphs/stage_graphs.h"
#include "gpipe/internal/model/given_tensors.h"
#include "gpipe/internal/model/remote_tensors.h"
#include "gpipe/internal/offload/stage_offloads.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/finite.h"
#include "gpipe/internal/tensors/transfer.h"
#include "skip/tracker.h"

namespace gpipe::internal {
namespace {

bool checkpoints(const RunContext& run, int64_t stage, int64_t micro_batch) {
  const Checkpoint mode = run.plan.checkpoints[stage];
  // If the backward follows at once, the graph that it would recompute is still there.
  return mode == Checkpoint::kAlways ||
         (mode == Checkpoint::kExceptLast && !run.follows_at_once[stage][micro_batch]);
}

bool any_needs_grad(const std::vector<Packet>& packets) {
  for (const Packet& packet : packets) {
    for (const Item& item : packet.items) {
      if (item.needs_grad) return true;
    }
  }
  return false;
}

}  // namespace

Stage::Stage(int64_t index, c10::Device device, std::vector<Layer> layers, Ports ports,
             bool over_processes, std::vector<at::Tensor> tied)
    : index_(index),
      device_(device),
      boundary_{index, std::move(ports), /*copies=*/!device.is_cpu() || over_processes},
      layers_(std::move(layers)),
      code_(index, layers_),
      tied_terms_(index, device, std::move(tied), over_processes) {}

void Stage::begin_run() {
  handed_over_.clear();
  early_recompute_.reset();
  buffers_.begin_run();
  shares_buffers_.reset();
  if (graphs_ != nullptr) graphs_->begin_run(layers_);
}

void Stage::use_graphs() { graphs_ = std::make_shared<StageGraphs>(index_, device_); }

std::optional<GraphUse> Stage::graph_use() const {
  if (graphs_ == nullptr) return std::nullopt;
  return graphs_->use();
}

std::string Stage::current_layer_type() const {
  if (!code_.runs_layer()) return "";
  return readable_type(layers_[code_.position()].module);
}

Stage::Result Stage::run_layers(const RunContext& run, int64_t micro_batch,
                                std::vector<Packet>& inputs, bool keep_inputs,
                                GivenGenerators* given) {
  if (graphs_ == nullptr) {
    const auto noted = note_made(run.offloads, index_, micro_batch);
    Result result = call_layers(run, micro_batch, inputs, keep_inputs, given);
    if (run.plan.record) add_outputs(boundary_.ports, result);
    return result;
  }
  const StageGraphs::Layers layers{
      layers_.size(), random_streams_,
      [&](std::vector<Packet>& values, bool keep) {
        return call_layers(run, micro_batch, values, keep, given);
      },
      [this](LayersResult& result) { add_outputs(boundary_.ports, result); },
      [this] { return current_layer(); }};
  code_.leave();
  return graphs_->run(run, micro_batch, inputs, keep_inputs, has_loss_, layers);
}

Stage::Result Stage::call_layers(const RunContext& run, int64_t micro_batch,
                                 std::vector<Packet>& inputs, bool keep_inputs,
                                 GivenGenerators* given) {
  const CellPlan& plan = run.plan;
  Result result;
  CellGraph& graph = result.graph;
  ReadOnlyInputs read_only;
  std::vector<std::vector<at::Tensor>> tensors =
      attach(boundary_, plan.record, inputs, result, read_only);
  if (!keep_inputs) {
    for (Packet& packet : inputs) {
      for (Item& item : packet.items) item.tensor = at::Tensor();
    }
  }

  skip::Tracker tracker;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& skip = boundary_.ports.inputs[k].skip;
    if (skip) tracker.stash(*skip, std::move(tensors[k][0]));
  }
  std::optional<skip::TrackerScope> tracker_scope(tracker);
  RandomStreamsScope random_scope(&random_streams_, plan.record ? &graph.draws() : nullptr, given);

  torch::nn::AnyValue value = to_any({inputs[0].kind, std::move(tensors[0])});
  tensors.clear();  // so that a layer's input is freed when the layer is done with it
  const auto layer_name = [this] { return current_layer(); };
  graph.layers().begin();
  for (size_t position = 0; position < layers_.size(); ++position) {
    random_streams_.enter(plan.step_seed, plan.number_of(micro_batch), layers_[position].index);
    phase_questions() = {};
    value = watched_call(
        run.remote_tensors,
        [&] { return run_layer(static_cast<int64_t>(position), std::move(value)); },
        [&](torch::nn::AnyValue& result) {
          return given_tensors(layers_[position], result, tracker);
        },
        layer_name);
    buffers_.note_questions(position, phase_questions());
    if (keep_inputs) check_kept(index_, inputs, "while it is checkpointed", layer_name);
    read_only.check(layer_name);
    if (run.check_finite) check_finite_given(layers_[position], value, tracker);
    if (plan.record) graph.layers().end_layer();
  }
  result.outputs.push_back(from_any(std::move(value)));
  for (size_t k = 1; k < boundary_.ports.outputs.size(); ++k) {
    result.outputs.push_back({ValueKind::kTensor, {tracker.pop(*boundary_.ports.outputs[k].skip)}});
  }
  tracker_scope.reset();
  return result;
}

torch::nn::AnyValue Stage::run_layer(int64_t position, torch::nn::AnyValue value) {
  Layer& layer = layers_[position];
  code_.enter(position);
  RunningStatisticsScope::enter_layer(layer.index);
  if (layer.skips.empty()) return layer.module.any_forward(std::move(value));
  skip::CallScope call(layer.skips);
  value = layer.module.any_forward(std::move(value));
  call.finish();
  return value;
}

void Stage::run_loss(const RunContext& run, int64_t micro_batch, MicroBatchLoss& loss,
                     Value outputs, const Packet& handed_over, Cell& cell) {
  const CellPlan& plan = run.plan;
  CellGraph graph;
  if (cell.recompute) {
    // The layers' graph is freed, so the loss must not be connected to it.
    for (size_t n = 0; n < outputs.tensors.size(); ++n) {
      outputs.tensors[n] = detached_alias(outputs.tensors[n]);
      graph.inputs().add(0, outputs.tensors[n], handed_over.items[n].needs_grad);
    }
  }
  graph.layers().begin_loss(layers_.size());
  // The loss may also draw random numbers: it counts as the layer after the last one.
  random_streams_.enter(plan.step_seed, plan.number_of(micro_batch),
                        layers_.empty() ? 0 : layers_.back().index + 1);
  RandomStreamsScope random_scope(&random_streams_, &graph.draws());
  const auto noted = note_made(run.offloads, index_, micro_batch);
  code_.enter(code_.loss());
  LossResult scalar = watched_call(
      run.remote_tensors, [&] { return loss(micro_batch, outputs.tensors); },
      [](const LossResult& result) { return std::vector<const at::Tensor*>{&result.loss}; },
      [this] { return current_layer(); }, /*is_loss=*/true);
  if (!plan.record) return;  // an evaluation: no backward follows
  graph.add_output(0, 0, scalar.loss);
  graph.targets() = std::move(scalar.targets);
  cell.seed = std::move(scalar.seed);
  if (cell.recompute) {
    cell.loss = std::make_unique<CellGraph>(std::move(graph));
  } else {
    cell.graph.append_loss(std::move(graph));
  }
}

std::vector<Packet> Stage::forward(const RunContext& run, int64_t micro_batch,
                                   std::vector<Packet> inputs, Cell& cell, MicroBatchLoss* loss,
                                   StatisticsLog* statistics) {
  const CellPlan& plan = run.plan;
  inputs.resize(boundary_.ports.inputs.size());  // without the packets of tied parameters
  for (Packet& packet : inputs) arrive(packet, device_);
  check_arrived(boundary_, plan.record, inputs);
  cell = Cell();
  if (run.check_finite && index_ == 0) {
    for (const Item& item : inputs.front().items) check_finite(item.tensor, "an input");
  }
  if (plan.record) plan.model.check_parameters(index_);
  const bool recomputes = plan.record && checkpoints(run, index_, micro_batch);
  has_loss_ = has_loss_ || (plan.record && loss != nullptr);
  Result result;
  GivenGenerators given;
  std::optional<std::vector<BufferValue>> buffers;
  LayerBuffers::Others others = others_in(run);
  may_recompute_ = may_recompute_ || plan.checkpoints[index_] != Checkpoint::kNever;
  const bool watches_buffers = may_recompute_ || plan.record || shares_buffers(run);
  {
    RunningStatisticsScope statistics_scope(
        plan.defer_batch_norm ? RunningStatistics::kDefer : RunningStatistics::kUpdate, run.tracked,
        statistics, plan.number_of(micro_batch), may_run_in_any_order(run), index_);
    // A checkpointed cell records a graph, too, and drops it at once, because only a cell that
    // records runs exactly as the plain model does and knows which outputs require a gradient.
    CheckpointPhaseScope phase(recomputes ? CheckpointPhase::kCheckpointing
                                          : CheckpointPhase::kNone);
    others.is_updated = [&](const at::Tensor& buffer) {
      return statistics_scope.has_updated(buffer);
    };
    try {
      if (watches_buffers) buffers_.begin_forward(layers_, others, /*compares=*/may_recompute_);
      result = run_layers(run, micro_batch, inputs, /*keep_inputs=*/recomputes,
                          recomputes ? &given : nullptr);
      if (watches_buffers) {
        if (recomputes) code_.leave();
        buffers = buffers_.end_forward(layers_, others, later_check(run), plan.record);
      }
    } catch (...) {
      if (watches_buffers) {
        if (code_.runs_layer()) buffers_.note_questions(code_.position(), phase_questions());
        buffers_.fail_forward(others);
      }
      throw;
    }
  }
  std::vector<Packet> outputs =
      leave(boundary_, plan, result, handed_over_, [this] { return current_layer(); });
  // A cell that cannot be recomputed keeps its graph.
  if (recomputes && buffers && any_needs_grad(outputs)) {
    cell.held = buffers_.held();
    cell.recompute = Cell::Recompute{std::move(inputs), fingerprints_of(result.outputs),
                                     std::move(given), *std::move(buffers)};
    if (LayerBuffers::may_need_graph(cell.recompute->buffers)) {
      cell.recompute->graph = std::move(result.graph);
      cell.saved = buffers_.saved(cell.held);
    }
    result.graph = CellGraph();
  } else {
    inputs.clear();
    cell.graph = std::move(result.graph);
    if (plan.record) cell.saved = buffers_.saved(buffers_.held());
  }
  if (loss != nullptr) {
    run_loss(run, micro_batch, *loss, std::move(result.outputs.front()), outputs.front(), cell);
  }
  outputs.resize(outputs.size() + boundary_.ports.tied_out.size());
  return outputs;
}

bool Stage::may_run_in_any_order(const RunContext& run) const {
  return !run.forwards_ascend[index_] || run.plan.in_replicas;
}

LayerBuffers::Others Stage::others_in(const RunContext& run) const {
  return {{},
          [&run](const at::Tensor& buffer) { return run.tracked.is_shared(buffer); },
          /*on_one_thread=*/run.on_caller};
}

bool Stage::shares_buffers(const RunContext& run) {
  if (!shares_buffers_) {
    shares_buffers_ = std::any_of(layers_.begin(), layers_.end(), [&](const Layer& layer) {
      const std::vector<at::Tensor> buffers = layer.module.ptr()->buffers();
      return std::any_of(buffers.begin(), buffers.end(),
                         [&](const at::Tensor& buffer) { return run.tracked.is_shared(buffer); });
    });
  }
  return *shares_buffers_;
}

LayerBuffers::Later Stage::later_check(const RunContext& run) const {
  return [this, &run](const at::Tensor& differs) {
    run.late_checks.add(index_, differs, run.transfers);
  };
}

}  // namespace gpipe::internal
