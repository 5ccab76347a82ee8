// Local backward: a backward through the graph of one cell, on the thread that calls it.
//
// LibTorch's engine saves, sets and restores the whole thread-local state around every node, and
// makes a task with a future for every call. That takes two fifths of a small cell's instructions.
// A stage's worker needs none of that, because it already runs in the right state, and no other
// thread uses the cell's graph.
//
// A local backward also guarantees what the engine does not. A leaf's .grad never shares its memory
// with another gradient. The engine lets .grad take the memory of a view (e.g. in `x +
// p.unsqueeze(0)` with one row); the next micro-batch's `.grad +=` would then change a gradient
// that is on its way to another stage. And a leaf that several stages use gets its gradient once
// per micro-batch.
#ifndef GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_
#define GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

// Runs backward from `roots` with `gradients` (one per root, defined), as visitor.settings says.
// Accumulates into leaves, unless `visitor` says otherwise.
//
// Guarantees: the result is that of Engine::execute(roots, gradients, keep_graph, false, true), bit
// for bit. Nodes run in the same order, so sums are added up in the same order. Nodes with user
// code, and all nodes in anomaly mode, are run by the engine, one at a time, because they may ask
// for its graph task. Streams: as in run_node().
//
// Throws: what a node throws; nodes that have not run by then do not run.
void run_local_backward(const torch::autograd::edge_list& roots,
                        torch::autograd::variable_list& gradients, WalkVisitor& visitor);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_LOCAL_BACKWARD_H_
