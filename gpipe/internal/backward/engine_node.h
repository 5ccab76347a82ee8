// run_in_engine: runs one node of a graph in autograd's engine; run_for_all_gradients: runs work
// that needs all gradients, whatever a backward around it asks for.
#ifndef GPIPE_INTERNAL_BACKWARD_ENGINE_NODE_H_
#define GPIPE_INTERNAL_BACKWARD_ENGINE_NODE_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <utility>

namespace gpipe::internal {

// Replaces the edges of a node while it lives. `edges` must have as many entries as the node has
// edges.
class EdgesScope {
 public:
  EdgesScope(torch::autograd::Node& node, torch::autograd::edge_list edges)
      // This does not use set_next_edges(), which refuses nodes that have parents, because of a
      // numbering that is not used when a whole graph runs.
      : edges_(const_cast<torch::autograd::edge_list&>(node.next_edges())),
        former_(std::move(edges)) {
    std::swap(edges_, former_);
  }
  ~EdgesScope() { std::swap(edges_, former_); }
  EdgesScope(const EdgesScope&) = delete;
  EdgesScope& operator=(const EdgesScope&) = delete;

 private:
  torch::autograd::edge_list& edges_;
  torch::autograd::edge_list former_;
};

// Runs the node with all its hooks inside a graph task of the engine, and returns one result per
// edge, undefined for an edge that is not valid. Inputs may be undefined. No node behind this one
// runs. Meanwhile the node's edges lead to substitutes, which users' code of the node may see.
//
// Requirements: no other thread uses the node at the same time.
torch::autograd::variable_list run_in_engine(torch::autograd::Node& node,
                                             torch::autograd::variable_list inputs,
                                             bool keep_graph);

// Runs `work` on this thread, such that nodes compute all their gradients. The thread may be in a
// backward that was asked for the gradients of some tensors only (torch::autograd::grad, or a list
// of inputs). Then LibTorch's nodes ask the backward's graph task which of their edges lead to
// these tensors. A graph that this task does not know would get no gradients, so `work` runs in a
// graph task of its own. Throws what `work` throws.
void run_for_all_gradients(const std::function<void()>& work);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_ENGINE_NODE_H_
