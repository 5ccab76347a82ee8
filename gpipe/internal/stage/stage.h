// Stage: one partition of the model on its device, able to run the forward and the backward of a
// micro-batch on its own.
//
// A cell is one micro-batch in one stage. Its graph is local: inputs are detached tensors whose
// gradients end in Sinks, and outputs leave detached. Nothing is hidden from autograd and no graph
// spans stages; only the schedule decides the order of cells. cell.h says what a cell keeps and how
// its graph runs backward; its layers run here.
#ifndef GPIPE_INTERNAL_STAGE_STAGE_H_
#define GPIPE_INTERNAL_STAGE_STAGE_H_

#include <c10/core/Device.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/backward/leaf_sums.h"
#include "gpipe/internal/batch/micro_batch_loss.h"
#include "gpipe/internal/boundary/boundary.h"
#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/boundary/leaving.h"
#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/cell/fingerprint.h"
#include "gpipe/internal/cell/layer_buffers.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/options.h"
#include "skip/tracker.h"

namespace gpipe::internal {

class StageGraphs;

// One backward of one cell.
struct BackwardTask {
  BackwardPart part = BackwardPart::kWhole;
  LeafSums* leaf_sums = nullptr;  // of the micro-batch
  // Gets the gradients of the targets of the cell's loss, if any are wanted.
  Packet* target_gradients = nullptr;
  GroupSums* group_sums = nullptr;  // of the stage; null: the leaves' .grad gets what arrives
};

// Requirements: its methods are called under an InterceptionScope, with the stage's device and
// stream current.
//
// Thread-safety: none; only one thread at a time works on a stage.
class Stage {
 public:
  // `over_processes`: whether some stages are in other processes. `ties`: the parameters that are
  // there, or on other devices, too, by the numbers that the ports have.
  Stage(int64_t index, c10::Device device, std::vector<Layer> layers, Ports ports,
        bool over_processes = false, std::vector<at::Tensor> ties = {});

  // Takes a packet for each input port and returns one for each output port. `loss` may be null.
  std::vector<Packet> forward(const RunContext& run, int64_t micro_batch,
                              std::vector<Packet> inputs, Cell& cell, MicroBatchLoss* loss,
                              StatisticsLog* statistics);

  // `gradients`: one packet for each output port (ignored if the cell has a loss; none for
  // BackwardPart::kWeights). Adds to the leaves' gradients (not with kInputs) and returns the
  // gradients of the input ports (none with kWeights). Unless run.keep_graph, it frees the cell,
  // except, with kInputs, what kWeights needs. A split backward cannot keep the graph, and no
  // gradients can be requested from it.
  std::vector<Packet> backward(const RunContext& run, int64_t micro_batch,
                               std::vector<Packet> gradients, Cell& cell, const BackwardTask& task);

  // Makes the graph of a checkpointed cell again, ahead of its backward. No effect for others.
  void recompute_early(const RunContext& run, int64_t micro_batch, Cell& cell);

  // Called before the first cell of a run.
  void begin_run();
  // Before each action, and when its layers are done: no layer is to blame.
  void begin_action() {
    running_layer_ = -1;
    recomputing_ = false;
  }
  void end_layers() { running_layer_ = -1; }

  // From now on kernels are recorded as graphs where they can be.
  void use_graphs();
  std::optional<GraphUse> graph_use() const;  // none: without graphs

  int64_t index() const { return index_; }
  c10::Device device() const { return device_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // Whether what ran last is a layer, not the loss function.
  bool runs_layer() const { return is_layer(running_layer_); }
  // "layer 5 ('relu')" or "the loss function": what ran last, i.e. where a failure happened.
  std::string current_layer() const { return name_of(running_layer_); }
  // "torch::nn::ReLUImpl"; empty where no layer ran.
  std::string current_layer_type() const;
  // Whether that was in a recompute.
  bool recomputing() const { return recomputing_; }
  // The micro-batch of recompute_early() if that failed: the action's is another one.
  std::optional<int32_t> early_recompute() const { return early_recompute_; }

 private:
  using Result = LayersResult;
  struct Backward;

  // Of positions in layers_, one past the end for the loss; -1: no layer is known.
  bool is_layer(int64_t position) const {
    return position >= 0 && position < static_cast<int64_t>(layers_.size());
  }
  std::string name_of(int64_t position) const;

  // Runs the layers, or replays a graph of their kernels. Inputs that need a gradient are attached
  // to the graph. `keep_inputs`, for a checkpointed cell: the inputs stay and are checked after
  // each layer. Otherwise they are consumed, so that an input is freed as soon as the layers are
  // done with it. `given` is for a checkpointed cell and its recompute, otherwise null.
  Result run_layers(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                    bool keep_inputs, GivenGenerators* given);
  Result call_layers(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                     bool keep_inputs, GivenGenerators* given);
  torch::nn::AnyValue run_layer(int64_t position, torch::nn::AnyValue value);
  void add_outputs(Result& result) const;
  // The layers' buffers are to be put back by end_recompute(), when the graph is not needed any
  // more.
  CellGraph recompute(const RunContext& run, int64_t micro_batch, Cell::Recompute& kept);
  void run_loss(const RunContext& run, int64_t micro_batch, MicroBatchLoss& loss, Value outputs,
                const Packet& handed_over, Cell& cell);
  // The terms of ties that the stages behind have sent, and those that the stages before get.
  void take_ties(const RunContext& run, std::vector<Packet>& gradients, LeafSums& sums) const;
  void send_ties(const RunContext& run, std::vector<Packet>& gradients, LeafSums& sums) const;
  // The stage that accumulates the leaf's gradient. `parameter`: what the leaf is in the model, if
  // it is anything there.
  int64_t owner_of(const RunContext& run, const at::Tensor& leaf,
                   const ModelState::Parameter* parameter) const;
  std::vector<Fingerprint> fingerprints_of(const Result& result) const;

  // What the layer at `position` has made: its output, and what it stashes.
  std::vector<const at::Tensor*> given_by(size_t position, torch::nn::AnyValue& value,
                                          const skip::Tracker& tracker) const;
  // Throws c10::ValueError for what the layer at `position` has made that is not finite.
  void check_finite_layer(size_t position, torch::nn::AnyValue& value,
                          const skip::Tracker& tracker) const;
  LayerBuffers::Others others_in(const RunContext& run) const;
  LayerBuffers::Later later_check(const RunContext& run) const;
  void check_recomputed(const RunContext& run, const std::vector<Fingerprint>& now,
                        const std::vector<Fingerprint>& in_forward);

  int64_t index_;
  c10::Device device_;
  Boundary boundary_;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> ties_;
  LayerBuffers buffers_;
  bool watches_buffers_ = false;  // some cell of this stage may have been checkpointed
  RandomStreams draws_;
  std::shared_ptr<StageGraphs> graphs_;  // null: none are wanted
  bool has_loss_ = false;                // a loss was computed here
  int64_t running_layer_ = -1;           // position in layers_; one past the end: the loss
  bool recomputing_ = false;             // stays if the recompute fails
  std::optional<int32_t> early_recompute_;
  HandedOver handed_over_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_STAGE_H_
