// Backward through the graph of one cell, on the thread that calls it.
//
// LibTorch's engine saves, sets and restores the whole thread-local state around every node, and
// makes a task with a future for every call: two fifths of a small cell's instructions. A stage's
// worker needs none of it: it runs in the right state already, and a cell's graph is its own.
//
// It also does what the engine leaves out. A leaf's .grad never shares its memory with another
// gradient: the engine lets it take the memory of a view (that of `x + p.unsqueeze(0)` with one
// row, say), and the next micro-batch's `.grad +=` would then change a gradient that is on its way
// to another stage. And a leaf that several stages use gets its gradient once per micro-batch.
#ifndef GPIPE_INTERNAL_LOCAL_BACKWARD_H_
#define GPIPE_INTERNAL_LOCAL_BACKWARD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace gpipe::internal {

class GradientSink;

// Whether somebody's hooks hang on the node: on the tensor whose gradient it takes, or on itself.
bool has_hooks(torch::autograd::Node& node);

struct LocalBackwardOptions {
  // What nodes have saved stays.
  bool keep_graph = false;

  // The Boundaries in which the graph may end. Reaching another one is an error: a tensor of
  // another cell came here by a way that the pipeline does not know.
  c10::SmallVector<const GradientSink*, 2> sinks;

  // The nodes that the cell has made: on this thread, with sequence numbers from `begin` on.
  // Others, from outside, run after them as in one graph, where they are older; their numbers, of
  // another thread perhaps, do not tell. Default: all.
  struct Range {
    uint64_t thread;
    uint64_t begin;
  };
  std::optional<Range> own;
  // Called for each node reached that is none of these and no leaf, before anything runs. May
  // throw.
  std::function<void(const torch::autograd::Node&)> enter_foreign;

  // For each leaf that is reached, with its accumulator: null if its gradient is to be accumulated,
  // or else where its terms are to be added up, in the order in which the engine would, or
  // discarded(). What it points to must stay where it is. May throw. Default: all leaves
  // accumulate.
  std::function<at::Tensor*(const std::shared_ptr<torch::autograd::Node>& accumulator,
                            const at::Tensor& leaf)>
      sum_of;

  // For sum_of(): nobody wants the leaf's gradient.
  static at::Tensor* discarded();

  // Called before each node that runs code of a user's: hooks, custom functions. `next`: the lowest
  // sequence number among the nodes made after it.
  std::function<void(const torch::autograd::Node&, uint64_t next)> before_users_code;

  // Where the sequence number of the node that runs, if it is no leaf's, is noted, for messages.
  uint64_t* running = nullptr;
};

// Whether the node belongs to a torch::autograd::Function of a user.
bool is_custom_function(const torch::autograd::Node& node);

// Runs backward from `roots` with `gradients` (one per root, defined) and accumulates into leaves,
// as Engine::execute(roots, gradients, keep_graph, false, true) does, bit for bit: nodes run in the
// same order, so sums are added up in the same order. Nodes with users' code, and all nodes in
// anomaly mode, are run by the engine, one at a time: they may ask for its graph task.
//
// Accelerators: as in the engine a node computes on its forward's stream; it and the current
// streams of this thread, which all else is ordered by, follow one another.
//
// Throws what a node throws; nodes that have not run by then do not run.
void run_local_backward(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients,
                        const LocalBackwardOptions& options);

// The half of a backward that nobody but the optimizer waits for, and what it needs: gradients, and
// nodes with what they have saved. Move-only; dropping it gives up those gradients.
class WeightBackward {
 public:
  WeightBackward();
  ~WeightBackward();
  WeightBackward(WeightBackward&&) noexcept;
  WeightBackward& operator=(WeightBackward&&) noexcept;

  // Runs it, once: accumulates into leaves what is left, in the order of the whole backward.
  // `options` as at the first half; keep_graph is not looked at.
  void run(const LocalBackwardOptions& options);

  bool empty() const { return held_ == nullptr; }
  // Whether a gradient that it needs has this memory.
  bool holds(const c10::StorageImpl* storage) const;

 private:
  friend WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                           torch::autograd::variable_list& gradients,
                                           const LocalBackwardOptions& options);
  struct Held;
  std::unique_ptr<Held> held_;
};

// The other half: what the sinks, and the places that sum_of names, wait for. No leaf's .grad
// changes. Both halves together are run_local_backward(), bit for bit.
//
// A matrix product or a convolution whose operand is a weight runs in both halves, once for each of
// its gradients. Every other node runs whole, here if something waits for it: it would cost as much
// twice. What it has for the weights is held. options.keep_graph must not be set.
WeightBackward run_input_backward(const torch::autograd::edge_list& roots,
                                  torch::autograd::variable_list& gradients,
                                  const LocalBackwardOptions& options);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LOCAL_BACKWARD_H_
