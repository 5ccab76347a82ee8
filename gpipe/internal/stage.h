// Stage: one partition of the model on its device, able to run forward and backward of a
// micro-batch on its own.
//
// A cell is one micro-batch in one stage. Its graph is local: inputs are detached tensors that end
// in a Boundary, outputs leave detached. Nothing is hidden from autograd and no graph spans stages;
// the order of cells is the schedule's alone.
#ifndef GPIPE_INTERNAL_STAGE_H_
#define GPIPE_INTERNAL_STAGE_H_

#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gpipe/checkpoint.h"
#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/boundary.h"
#include "gpipe/internal/caller_state.h"
#include "gpipe/internal/draws.h"
#include "gpipe/internal/fingerprint.h"
#include "gpipe/internal/foreign_nodes.h"
#include "gpipe/internal/late_checks.h"
#include "gpipe/internal/layer.h"
#include "gpipe/internal/leaf_sums.h"
#include "gpipe/internal/leaving_copies.h"
#include "gpipe/internal/local_backward.h"
#include "gpipe/internal/model_state.h"
#include "gpipe/internal/operator_mode.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/value.h"
#include "skip/tracker.h"

namespace gpipe::internal {

// What one call of forward() or step() fixes for all of its cells.
struct CellPlan {
  uint64_t step_seed = 0;
  bool record = true;                   // gradients will be asked for
  std::vector<Checkpoint> checkpoints;  // [stage]
  // [stage][micro-batch] the schedule runs the cell's backward right after its forward.
  const std::vector<std::vector<bool>>* follows_at_once = nullptr;
  bool defer_batch_norm = false;
  const TrackedStatistics* tracked = nullptr;  // of this run's start
  const CallerState* forward_state = nullptr;  // the caller's at forward, for recomputes
  ModelState model;                            // at forward
  // On the calling thread, when the call began: graph nodes made since then are the pipeline's.
  uint64_t thread = 0;
  uint64_t begin = 0;
};

// The graph that a cell's forward, or its recompute, leaves behind for its backward.
struct CellGraph {
  using Edges = c10::SmallVector<torch::autograd::Edge, 2>;
  std::shared_ptr<Boundary> boundary;           // null: no input wants a gradient
  std::vector<c10::SmallVector<int, 2>> sinks;  // [input][item] index in the boundary, or -1
  std::vector<Edges> outputs;                   // [output][item], invalid where none
  // Nodes made in layer k have sequence numbers below layer_ends[k] and not below the one before,
  // or those of the first layer not below `begin`; all of them are made on `thread`.
  uint64_t thread = 0;
  uint64_t begin = 0;
  c10::SmallVector<uint64_t, 8> layer_ends;
  std::vector<DrawRecord> draws;
};

// The loss of a cell in the last stage.
struct LossGraph {
  torch::autograd::Edge edge;  // invalid: no loss here
  at::Tensor seed;             // of its gradient; undefined: this micro-batch does not count
  // Where the cell is checkpointed the loss hangs on detached outputs, whose gradients end here.
  std::shared_ptr<Boundary> outputs;
  c10::SmallVector<int, 2> sinks;     // [output] index in that boundary, or -1
  std::shared_ptr<Boundary> targets;  // null: no target wants a gradient
  uint64_t begin = 0;                 // its nodes' sequence numbers
  std::vector<DrawRecord> draws;      // where the cell is checkpointed
};

// What a cell keeps between its forward and its backward.
struct Cell {
  bool checkpointed = false;
  CellGraph graph;                        // not checkpointed
  std::vector<Packet> inputs;             // checkpointed
  std::vector<Fingerprint> fingerprints;  // checkpointed: of the outputs that want a gradient
  LossGraph loss;
  // Between the halves of a split backward; `graph` then tells of the nodes that are left.
  WeightBackward weights;
  bool with_loss = false;  // these nodes are the loss's, too
};

// Which part of a cell's backward is run.
enum class BackwardPart : uint8_t {
  kWhole,
  kInputs,   // what the stages before wait for; a recompute, if there is one, is here
  kWeights,  // the rest
};

// Turns the last stage's outputs for a micro-batch into its loss (a scalar that wants a gradient),
// and the gradient to start its backward with.
struct LossResult {
  at::Tensor loss;
  at::Tensor seed;
  std::shared_ptr<Boundary> targets;  // behind the targets that want a gradient
};
using CellLoss = std::function<LossResult(int64_t micro_batch, const std::vector<at::Tensor>&)>;

// What torch::autograd::grad, or a backward with a list of inputs, wants: gradients of these leaves
// are collected here, and every .grad stays as it is. Each sum is written by the stage that owns
// the leaf.
struct Captured {
  std::vector<const torch::autograd::Node*> leaves;         // accumulators
  std::vector<at::Tensor> sums;                             // [leaf]; undefined: none arrived
  absl::flat_hash_set<const torch::autograd::Node*> asked;  // all that the caller asked for
};

// What a stage needs to know of the routes that meet in it.
struct StageRoutes {
  std::vector<skip::Key> incoming;  // skips, in the order of the packets behind the activation's
  std::vector<skip::Key> outgoing;
  std::vector<int64_t> outgoing_targets;  // [skip] the stage it goes to
  // The outputs (0: activation) in the order in which their gradients are to be added up.
  std::vector<int> gradient_order;
};

// What one backward of a cell has to do besides.
struct BackwardTask {
  BackwardPart part = BackwardPart::kWhole;
  bool keep = false;             // the cell may run its backward once more
  Captured* captured = nullptr;  // not null: gradients go there instead of the leaves' .grad
  LeafSums* leaf_sums = nullptr;
  ForeignNodes* foreign = nullptr;
  // For recomputes whose values are not known at once, and what brings them to the host.
  LateChecks* late_checks = nullptr;
  Transfers* transfers = nullptr;
  // [stage] the first stage on the same device.
  const std::vector<int64_t>* first_on_device = nullptr;
  bool on_caller = false;  // the cell runs on the calling thread
};

// Not thread-safe: at any time one thread works on a stage. Requirements: its methods are called
// under an OperatorModeScope, on the stage's device and stream.
class Stage {
 public:
  Stage(int64_t index, c10::Device device, std::vector<Layer> layers, StageRoutes routes);

  // inputs: the activation, then the incoming skips. Returns the activation, then the outgoing
  // skips.
  std::vector<Packet> forward(const CellPlan& plan, int64_t micro_batch, std::vector<Packet> inputs,
                              Cell& cell, const CellLoss& loss, StatisticsLog* statistics);

  // gradients: for each of forward's outputs (ignored where the cell has a loss; none for
  // BackwardPart::kWeights). Adds to the leaves' gradients (not with kInputs) and returns those of
  // forward's inputs (none with kWeights). Unless task.keep, frees the cell, with kInputs but for
  // what kWeights needs. A split backward cannot be kept, nor can its gradients be captured.
  std::vector<Packet> backward(const CellPlan& plan, int64_t micro_batch,
                               std::vector<Packet> gradients, Cell& cell, const BackwardTask& task);

  // Before the first cell of a call.
  void begin_call() { handed_over_.clear(); }

  int64_t index() const { return index_; }
  c10::Device device() const { return device_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // "layer 5 ('relu')" or "the loss function", what ran last: where a failure happened.
  std::string current_layer() const;

 private:
  struct Result {
    Value activation;
    std::vector<at::Tensor> skips;
    CellGraph graph;
    // Memory of such inputs (see Item). Weak, so that it is freed, and its address is not used
    // again.
    WeakStorages read_only;
    WeakStorages shared;
  };

  // Runs the layers, with the inputs attached to a boundary where they want a gradient.
  // `keep_inputs`, for a checkpointed cell: they stay and are checked after each layer; otherwise
  // they are consumed, so that an input is freed as soon as the layers are done with it.
  Result run(const CellPlan& plan, int64_t micro_batch, std::vector<Packet>& inputs,
             bool keep_inputs);
  CellGraph recompute(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                      const BackwardTask& task);
  // The packets to send, with no graph behind them.
  std::vector<Packet> hand_over(const CellPlan& plan, const Result& result);
  at::Tensor leaving_alias(const CellPlan& plan, const at::Tensor& tensor);
  void run_loss(const CellPlan& plan, int64_t micro_batch, const CellLoss& loss, Value outputs,
                const Packet& handed_over, Cell& cell);
  // Leaves' gradients that the caller named, terms of other stages included, go to task.captured.
  std::function<at::Tensor*(const std::shared_ptr<torch::autograd::Node>&, const at::Tensor&)>
  sum_of(const CellPlan& plan, const BackwardTask& task, LeafSums& captured);
  // The stage that accumulates the leaf's gradient.
  int64_t owner_of(const CellPlan& plan, const BackwardTask& task, const at::Tensor& leaf) const;
  std::vector<Fingerprint> fingerprints_of(const Result& result) const;
  std::vector<Packet> backward_weights(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                                       const BackwardTask& task);
  // Runs `backward` and finds out, if it fails, which layer has.
  void run_attributed(const CellGraph& graph, bool with_loss, const uint64_t& running,
                      const std::function<void()>& backward);
  // Runs the loss's own graph, where the cell is checkpointed. Returns the outputs' gradients.
  Packet backward_loss(const CellPlan& plan, int64_t micro_batch, Cell& cell,
                       const BackwardTask& task, LeafSums& leaves);
  LocalBackwardOptions options_for(const CellPlan& plan, int64_t micro_batch,
                                   const BackwardTask& task, const CellGraph& graph,
                                   uint64_t& running);

  void check_arrived(const CellPlan& plan, std::vector<Packet>& inputs) const;
  void check_kept(const std::vector<Packet>& inputs, const char* when) const;
  // The position of the layer that made the node; -1 for one made before; behind the last layer for
  // the loss.
  int64_t layer_of(const CellGraph& graph, uint64_t sequence_nr) const;

  int64_t index_;
  c10::Device device_;
  std::vector<Layer> layers_;
  StageRoutes routes_;
  Draws draws_;
  int64_t running_layer_ = -1;  // position in layers_; behind the last: the loss
  // Memory of outputs handed over in this call, and its version then: a layer that reuses it would
  // change what is on its way. Weak, so that no other memory gets the same address.
  struct HandedOver {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t version;
  };
  absl::flat_hash_map<const c10::StorageImpl*, HandedOver> handed_over_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_H_
