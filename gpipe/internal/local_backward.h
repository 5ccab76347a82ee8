// Backward through the graph of one cell, on the thread that calls it.
//
// LibTorch's engine saves, sets and restores the whole thread-local state around every node, and
// makes a task with a future for every call: two fifths of a small cell's instructions. A stage's
// worker needs none of it: it runs in the right state already, and a cell's graph is its own.
#ifndef GPIPE_INTERNAL_LOCAL_BACKWARD_H_
#define GPIPE_INTERNAL_LOCAL_BACKWARD_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace gpipe::internal {

// Whether somebody's hooks hang on the node: on the tensor whose gradient it takes, or on itself.
bool has_hooks(torch::autograd::Node& node);

// Runs backward from `roots` with `gradients` (one per root, defined) and accumulates into leaves,
// as Engine::execute(roots, gradients, keep_graph, false, true) does, bit for bit: nodes run in the
// same order, so sums are added up in the same order. With `keep_graph`, what nodes have saved
// stays.
//
// False, and nothing is done: the graph needs the engine, because a node computes on an accelerator
// (whose nodes run on the engine's thread for it), somebody else's hook hangs on a node or a node
// is not LibTorch's own (they may ask for the engine's graph task, as DistributedDataParallel's
// do), or anomaly mode is on.
//
// Throws what a node throws; nodes that have not run by then do not run.
bool run_local_backward(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients, bool keep_graph);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LOCAL_BACKWARD_H_
