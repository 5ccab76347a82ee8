// run_node: one node of a graph of autograd, run on the calling thread.
#ifndef GPIPE_INTERNAL_BACKWARD_RUN_NODE_H_
#define GPIPE_INTERNAL_BACKWARD_RUN_NODE_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <exception>

namespace gpipe::internal {

// Checks gradients on their way along `edges`, and converts them to the expected form. Throws
// c10::Error for a gradient that cannot be converted. `from`: the node that has computed the
// gradients; null for those of roots.
void validate_gradients(const torch::autograd::edge_list& edges,
                        torch::autograd::variable_list& gradients,
                        const torch::autograd::Node* from);

// Runs the node and returns its results in the form that its edges expect. Saved tensors are
// released unless `keep_graph`. `in_engine`: the engine runs it, because users' code may ask for
// its graph task.
//
// On accelerators, the node computes on the stream of its forward, as in the engine. Before it,
// that stream waits for this thread's current stream, which orders everything else; after it, the
// current stream waits for that stream.
torch::autograd::variable_list run_node(torch::autograd::Node& node,
                                        torch::autograd::variable_list inputs, bool in_engine,
                                        bool keep_graph);

// A function that gets what a node throws, on the node's thread, where another language may have
// left a part of it. It must not throw.
using ThrownTaker = void (*)(const std::exception& error);
// Sets the taker of the whole process; null, the default: none. Thread-safe.
void set_thrown_taker(ThrownTaker taker);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_RUN_NODE_H_
