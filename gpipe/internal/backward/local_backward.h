// Local backward: a backward through the graph of one cell, on the thread that calls it.
//
// LibTorch's engine saves, sets and restores the whole thread-local state around every node, and
// makes a task with a future for every call. That takes two fifths of a small cell's instructions.
// A stage's worker needs none of it: it already runs in the right state, and a cell's graph is its
// own.
//
// It also does what the engine does not. A leaf's .grad never shares its memory with another
// gradient. The engine lets .grad take the memory of a view (e.g. in `x + p.unsqueeze(0)` with one
// row); the next micro-batch's `.grad +=` would then change a gradient that is on its way to
// another stage. And a leaf that several stages use gets its gradient once per micro-batch.
#ifndef GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_
#define GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

namespace gpipe::internal {

class GradientSink;

struct LocalBackwardOptions {
  // Saved tensors are not released.
  bool keep_graph = false;

  // The GradientSinks in which the graph may end. Reaching another one is an error: a tensor of
  // another cell got here in a way that the pipeline does not know.
  c10::SmallVector<const GradientSink*, 2> sinks;

  // The nodes that the cell has made: on thread `thread`, with sequence numbers from `begin` on.
  // Nodes from outside run after them, as in a single graph, in which they are older. Their
  // sequence numbers may be those of another thread and so say nothing about the order. Default:
  // all nodes.
  struct Range {
    uint64_t thread;
    uint64_t begin;
  };
  std::optional<Range> own;
  // Called for each node reached that is neither in `own` nor a leaf, before anything runs. May
  // throw.
  std::function<void(const torch::autograd::Node&)> enter_foreign;

  // Called for each leaf that is reached, with its accumulator. Returns null if its gradient is to
  // be accumulated. Otherwise it returns the tensor in which the terms are added up, in the order
  // in which the engine would do so, or discarded(). The tensor must stay at its address. May
  // throw. Default: all leaves accumulate.
  std::function<at::Tensor*(const std::shared_ptr<torch::autograd::Node>& accumulator,
                            const at::Tensor& leaf)>
      sum_of;

  // Called for each leaf whose gradient is to be accumulated here. Returns null for its .grad, or a
  // tensor in its place: the leaf's hooks run, but for a post-accumulate hook, which is for .grad.
  // The tensor must stay at its address. Default: .grad.
  std::function<at::Tensor*(const std::shared_ptr<torch::autograd::Node>& accumulator,
                            const at::Tensor& leaf)>
      in_place_of_grad;

  // A result of sum_of(): nobody wants the leaf's gradient.
  static at::Tensor* discarded();

  // Called before each node that runs user code: hooks, custom functions. `next`: the lowest
  // sequence number among the nodes made after it.
  std::function<void(const torch::autograd::Node&, uint64_t next)> before_users_code;

  // Throws c10::ValueError for a gradient that a node gives and that is not finite.
  bool check_finite = false;

  // How far the backward has come, for messages.
  struct Progress {
    static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
    // Whether all nodes are found. Before, nothing runs.
    bool found = false;
    // The sequence number of the node that runs, or, before all are found, of the last node of
    // `own` on the way to the one that is reached. kNone: none has run yet; reached as a root.
    // Leaves are not recorded.
    uint64_t node = kNone;
  };
  Progress* progress = nullptr;
};

// Runs backward from `roots` with `gradients` (one per root, defined) and accumulates into leaves.
//
// Guarantees: the result is that of Engine::execute(roots, gradients, keep_graph, false, true), bit
// for bit. Nodes run in the same order, so sums are added up in the same order. Nodes with user
// code, and all nodes in anomaly mode, are run by the engine, one at a time, because they may ask
// for its graph task. On accelerators, as in the engine, a node computes on the stream of its
// forward. That stream and this thread's current stream, which orders everything else, wait for
// each other before and after the node.
//
// Throws: what a node throws; nodes that have not run by then do not run.
void run_local_backward(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients,
                        const LocalBackwardOptions& options);

// The half of a backward that only the optimizer waits for, and what it needs: gradients, and nodes
// with their saved tensors. Move-only; destroying it discards those gradients.
class WeightBackward {
 public:
  WeightBackward();
  ~WeightBackward();
  WeightBackward(WeightBackward&&) noexcept;
  WeightBackward& operator=(WeightBackward&&) noexcept;

  // Runs it, once: accumulates the remaining gradients into leaves, in the order of the whole
  // backward. `options` are those of the first half; keep_graph is ignored.
  void run(const LocalBackwardOptions& options);

  bool empty() const { return held_ == nullptr; }

 private:
  friend WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                           torch::autograd::variable_list& gradients,
                                           const LocalBackwardOptions& options);
  struct Held;
  std::unique_ptr<Held> held_;
};

// The first half of a backward: what the sinks, and the tensors that sum_of returns, wait for. No
// leaf's .grad changes. Both halves together equal run_local_backward(), bit for bit.
//
// A matrix product or a convolution with a weight as operand runs in both halves, once for each of
// its gradients. Every other node runs only once, as a whole, because it would cost as much twice:
// it runs here if something waits for it, and what it computes for the weights is held.
//
// Users' code (hooks, custom functions) may write into the gradients that it is given. What it
// writes here is seen by what runs after it in the whole backward, and not by what runs before,
// though that may be held. So users' code whose gradients nodes of this half may share runs here,
// too, in its place. And what is held at the end shares memory with nobody: neither with what
// leaves the cell, nor with what others gave it.
//
// Requirements: options.keep_graph is not set.
WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                  torch::autograd::variable_list& gradients,
                                  const LocalBackwardOptions& options);

// For tests: whether second halves check that nobody shares the memory of what was held, and that
// its values are still those at the end of the first half. Default: not.
void check_held_gradients(bool on);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_
