// Stage: one partition of the model on its device, able to run forward and backward of a
// micro-batch on its own.
//
// A cell is one micro-batch in one stage. Its graph is local: inputs are detached tensors that end
// in a Boundary, outputs leave detached. Nothing is hidden from autograd and no graph spans stages;
// the order of cells is the schedule's alone.
#ifndef GPIPE_INTERNAL_STAGE_H_
#define GPIPE_INTERNAL_STAGE_H_

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/modules/container/any.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/boundary.h"
#include "gpipe/internal/draws.h"
#include "gpipe/internal/operator_mode.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/value.h"
#include "skip/call.h"
#include "skip/tracker.h"

namespace gpipe::internal {

// A layer of the user's model, and what the pipeline has to know of it.
struct Layer {
  torch::nn::AnyModule module;
  std::string name;  // its key in the user's Sequential
  int64_t index;     // in the whole model
  skip::CallPlan skips;
};

// What one call of forward() or step() fixes for all of its cells.
struct CellPlan {
  uint64_t step_seed = 0;
  bool record = true;  // gradients will be asked for
  // [stage]: micro-batches below this number are checkpointed.
  std::vector<int64_t> checkpointed;
  bool defer_batch_norm = false;
  const TrackedStatistics* tracked = nullptr;           // of this run's start
  const at::ThreadLocalState* forward_state = nullptr;  // the caller's at forward, for recomputes
};

// The graph that a cell's forward, or its recompute, leaves behind for its backward.
struct CellGraph {
  using Edges = c10::SmallVector<torch::autograd::Edge, 2>;
  std::shared_ptr<Boundary> boundary;           // null: no input wants a gradient
  std::vector<c10::SmallVector<int, 2>> sinks;  // [input][item] index in the boundary, or -1
  std::vector<Edges> outputs;                   // [output][item], invalid where none
  std::shared_ptr<std::atomic<int64_t>> layer;  // the layer whose backward runs, for messages
};

// What a cell keeps between its forward and its backward.
struct Cell {
  bool checkpointed = false;
  bool done = false;                                   // its backward ran and its graph is gone
  CellGraph graph;                                     // not checkpointed
  std::vector<Packet> inputs;                          // checkpointed
  std::vector<c10::SmallVector<int64_t, 2>> versions;  // checkpointed: of the inputs' tensors
  // With a loss: its edge and the seed of its gradient. Where the cell is checkpointed the loss
  // hangs on detached outputs, whose gradients end in `loss_boundary`.
  torch::autograd::Edge loss;
  at::Tensor loss_seed;
  std::shared_ptr<Boundary> loss_boundary;
  c10::SmallVector<int, 2> loss_sinks;
};

// Turns the last stage's outputs for a micro-batch into its loss (a scalar) and the gradient to
// start its backward with.
struct LossResult {
  at::Tensor loss;
  at::Tensor seed;
};
using CellLoss = std::function<LossResult(int64_t micro_batch, const std::vector<at::Tensor>&)>;

// What torch::autograd::grad, or a backward with a list of inputs, wants of one stage: gradients of
// these leaves are collected here, and every .grad stays as it is.
struct Captured {
  // sum += term; an undefined one is zero.
  static void add_to(at::Tensor& sum, const at::Tensor& term) {
    if (term.defined()) sum = sum.defined() ? sum + term : term;
  }

  torch::autograd::edge_list leaves;    // to their accumulators; without hooks
  torch::autograd::variable_list sums;  // over the micro-batches so far; undefined: none arrived
};

// Not thread-safe: at any time one thread works on a stage. Requirements: its methods are called
// under an OperatorModeScope, on the stage's device and stream.
class Stage {
 public:
  // `incoming` and `outgoing` are the keys of the skips that come from and go to other stages, in
  // the order of the packets behind the activation's; `gradient_order` lists the outputs (0:
  // activation) in the order in which their gradients are to be added up.
  Stage(int64_t index, c10::Device device, std::vector<Layer> layers,
        std::vector<skip::Key> incoming, std::vector<skip::Key> outgoing,
        std::vector<int> gradient_order);

  // inputs: the activation, then the incoming skips. Returns the activation, then the outgoing
  // skips.
  std::vector<Packet> forward(const CellPlan& plan, int64_t micro_batch, std::vector<Packet> inputs,
                              Cell& cell, const CellLoss& loss, StatisticsLog* statistics);

  // gradients: for each of forward's outputs (ignored where the cell has a loss). Adds to the
  // parameters' .grad, or else to what is `captured` (not null), and returns those of forward's
  // inputs. Unless `keep`, frees the cell.
  std::vector<Packet> backward(const CellPlan& plan, int64_t micro_batch,
                               std::vector<Packet> gradients, Cell& cell, bool keep,
                               Captured* captured);

  int64_t index() const { return index_; }
  c10::Device device() const { return device_; }
  std::vector<Layer>& layers() { return layers_; }

  // "layer 5 ('relu')" or "the loss function", what ran last: where a failure happened.
  std::string current_layer() const;

 private:
  struct Result {
    Value activation;
    std::vector<at::Tensor> skips;
    CellGraph graph;
  };

  // Runs the layers. `record`: attach the inputs to a boundary and keep the graph. With `watched`,
  // a checkpointed cell, `inputs` are kept and checked after each layer; otherwise they are
  // consumed, so that an input is freed as soon as the layers are done with it.
  Result run(const CellPlan& plan, int64_t micro_batch, std::vector<Packet>& inputs, bool record,
             const Cell* watched);
  CellGraph recompute(const CellPlan& plan, int64_t micro_batch, Cell& cell, bool keep);
  void check_unchanged(const Cell& cell, const std::vector<Packet>& inputs, const char* when) const;
  bool trainable() const;

  int64_t index_;
  c10::Device device_;
  std::vector<Layer> layers_;
  std::vector<skip::Key> incoming_;
  std::vector<skip::Key> outgoing_;
  std::vector<int> gradient_order_;
  std::vector<at::Tensor> parameters_;
  Draws draws_;
  int64_t running_layer_ = -1;  // position in layers_; behind the last: the loss
  // Set when a stage without trainable parameters or inputs turns out to produce gradients all the
  // same: its layers use tensors that are not registered as parameters.
  bool captures_grad_ = false;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_H_
