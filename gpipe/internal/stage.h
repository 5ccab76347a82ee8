// Stage: one partition of the model on its device, able to run forward and backward of a
// micro-batch on its own.
//
// A cell is one micro-batch in one stage. Its graph is local: inputs are detached tensors that end
// in Sinks, outputs leave detached. Nothing is hidden from autograd and no graph spans stages; the
// order of cells is the schedule's alone. What a cell keeps, and how its graph runs backward, is
// cell.h's; here its layers run.
#ifndef GPIPE_INTERNAL_STAGE_H_
#define GPIPE_INTERNAL_STAGE_H_

#include <c10/core/Device.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gpipe/checkpoint.h"
#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/caller_state.h"
#include "gpipe/internal/cell.h"
#include "gpipe/internal/fingerprint.h"
#include "gpipe/internal/foreign_nodes.h"
#include "gpipe/internal/late_checks.h"
#include "gpipe/internal/layer.h"
#include "gpipe/internal/leaf_sums.h"
#include "gpipe/internal/leaving_copies.h"
#include "gpipe/internal/model_state.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/random_streams.h"
#include "gpipe/internal/read_only_inputs.h"
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
  // Gets the gradients of the targets of the cell's loss, if some are wanted.
  Packet* target_gradients = nullptr;
};

// Not thread-safe: at any time one thread works on a stage. Requirements: its methods are called
// under an InterceptionScope, on the stage's device and stream.
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
  struct Backward;

  // Runs the layers, with the inputs attached to the graph where they want a gradient.
  // `keep_inputs`, for a checkpointed cell: they stay and are checked after each layer; otherwise
  // they are consumed, so that an input is freed as soon as the layers are done with it.
  Result run(const CellPlan& plan, int64_t micro_batch, std::vector<Packet>& inputs,
             bool keep_inputs);
  // The inputs as the layers get them: [input][tensor].
  std::vector<std::vector<at::Tensor>> attach(const CellPlan& plan,
                                              const std::vector<Packet>& inputs, Result& result,
                                              ReadOnlyInputs& read_only) const;
  torch::nn::AnyValue run_layer(int64_t position, torch::nn::AnyValue value);
  void add_outputs(Result& result) const;
  CellGraph recompute(const CellPlan& plan, int64_t micro_batch, Cell::Recompute& kept,
                      const BackwardTask& task);
  // The packets to send, with no graph behind them.
  std::vector<Packet> hand_over(const CellPlan& plan, const Result& result);
  at::Tensor leaving_alias(const CellPlan& plan, const at::Tensor& tensor);
  void run_loss(const CellPlan& plan, int64_t micro_batch, const CellLoss& loss, Value outputs,
                const Packet& handed_over, Cell& cell);
  // The stage that accumulates the leaf's gradient.
  int64_t owner_of(const CellPlan& plan, const BackwardTask& task, const at::Tensor& leaf) const;
  std::vector<Fingerprint> fingerprints_of(const Result& result) const;

  void check_arrived(const CellPlan& plan, std::vector<Packet>& inputs) const;
  void check_kept(const std::vector<Packet>& inputs, const char* when) const;
  void check_recomputed(const std::vector<Fingerprint>& now,
                        const std::vector<Fingerprint>& in_forward, const BackwardTask& task);

  int64_t index_;
  c10::Device device_;
  std::vector<Layer> layers_;
  StageRoutes routes_;
  RandomStreams draws_;
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
