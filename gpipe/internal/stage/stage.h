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

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/batch/micro_batch_loss.h"
#include "gpipe/internal/boundary/boundary.h"
#include "gpipe/internal/boundary/layers_result.h"
#include "gpipe/internal/boundary/leaving.h"
#include "gpipe/internal/boundary/ports.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/cell/layer_buffers.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/stage/stage_code.h"
#include "gpipe/internal/stage/tied_terms.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/options.h"
#include "gpipe/runtime/running_code.h"

namespace gpipe::internal {

class StageGraphs;

// Requirements: its methods are called under an InterceptionScope, with the stage's device and
// stream current.
//
// Thread-safety: none; only one thread at a time works on a stage.
class Stage {
 public:
  // `over_processes`: whether some stages are in other processes. `tied`: the parameters that
  // several processes or devices share; the ports name them by their indices in it.
  Stage(int64_t index, c10::Device device, std::vector<Layer> layers, Ports ports,
        bool over_processes = false, std::vector<at::Tensor> tied = {});

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

  // Recomputes the graph of a checkpointed cell ahead of its backward. No effect for other cells.
  void recompute_early(const RunContext& run, int64_t micro_batch, Cell& cell);

  // Called before the first cell of a run.
  void begin_run();
  // begin_action() is called before each action, and end_layers() when its layers are done. After
  // these calls no layer is blamed for an error until the next layer runs.
  void begin_action() {
    code_.leave();
    recomputing_ = false;
  }
  void end_layers() { code_.leave(); }
  // During each action a RunningCode::Action of this object lives.
  RunningCode& running_code() { return code_.running(); }

  // From now on kernels are recorded as graphs where that is possible.
  void use_graphs();
  std::optional<GraphUse> graph_use() const;  // empty without graphs

  int64_t index() const { return index_; }
  c10::Device device() const { return device_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // The code that ran last, i.e. the place of a failure: "layer 5 ('relu')", say, or "the loss
  // function".
  const std::string& current_layer() const { return code_.current(); }
  // The type of that layer, like "torch::nn::ReLUImpl"; empty if no layer ran.
  std::string current_layer_type() const;
  // Whether the layer ran in a recompute.
  bool recomputing() const { return recomputing_; }
  // The buffer that a recompute had changed before it threw, and that could not be put back. Empty
  // if there is none.
  const std::string& lost_buffer() const { return buffers_.lost(); }
  // The micro-batch of recompute_early(), if that call failed. It differs from the micro-batch of
  // the action.
  std::optional<int32_t> early_recompute() const { return early_recompute_; }

 private:
  using Result = LayersResult;

  // Runs the layers, or replays a graph of their kernels. Inputs that need a gradient are attached
  // to the graph. `keep_inputs`, for a checkpointed cell: the inputs stay and are checked after
  // each layer. Otherwise they are consumed, so that an input is freed as soon as the layers are
  // done with it. `given` is for a checkpointed cell and its recompute, otherwise null.
  Result run_layers(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                    bool keep_inputs, GivenGenerators* given);
  Result call_layers(const RunContext& run, int64_t micro_batch, std::vector<Packet>& inputs,
                     bool keep_inputs, GivenGenerators* given);
  torch::nn::AnyValue run_layer(int64_t position, torch::nn::AnyValue value);
  // Drops the graph of a checkpointed cell's forward, if it cannot replace the recompute.
  static void drop_useless_graph(Cell& cell);
  // Returns the recomputed graph of a checkpointed cell, or that of its forward, if it still has
  // one. LayerBuffers::end_recompute() must put the layers' buffers back when the graph is not
  // needed any more.
  CellGraph recompute(const RunContext& run, int64_t micro_batch, Cell::Recompute& kept);
  void run_loss(const RunContext& run, int64_t micro_batch, MicroBatchLoss& loss, Value outputs,
                const Packet& handed_over, Cell& cell);
  LayerBuffers::Others others_in(const RunContext& run) const;
  // Whether another stage has a buffer of this stage's layers, too.
  bool shares_buffers(const RunContext& run);
  // Whether this stage's forwards take the micro-batches in another order than the loop.
  bool may_run_in_any_order(const RunContext& run) const;
  LayerBuffers::Later later_check(const RunContext& run) const;

  int64_t index_;
  c10::Device device_;
  Boundary boundary_;
  std::vector<Layer> layers_;
  StageCode code_;
  TiedTerms tied_terms_;
  LayerBuffers buffers_;
  bool may_recompute_ = false;          // some cell of this stage may have been checkpointed
  std::optional<bool> shares_buffers_;  // in this run; nullopt: not known yet
  RandomStreams random_streams_;
  std::shared_ptr<StageGraphs> graphs_;  // null: without graphs
  bool has_loss_ = false;                // a loss was computed here
  bool recomputing_ = false;             // stays true if the recompute fails
  std::optional<int32_t> early_recompute_;
  HandedOver handed_over_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_STAGE_H_
