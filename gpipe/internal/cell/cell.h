// Cell: what one micro-batch in one stage keeps between its forward and its backward.
//
// The cell's graph is local. It begins at Sinks, where the gradients of the cell's inputs end. Its
// outputs are edges whose gradients are given. A CellGraph knows nothing about layers except where
// their nodes end; Stage runs the layers, in the forward and in a recompute. The graph of a loss is
// one more CellGraph, either behind the graph of the layers or joined to it.
#ifndef GPIPE_INTERNAL_CELL_CELL_H_
#define GPIPE_INTERNAL_CELL_CELL_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/split_backward.h"
#include "gpipe/internal/backward/walk_visitor.h"
#include "gpipe/internal/cell/cell_random.h"
#include "gpipe/internal/cell/fingerprint.h"
#include "gpipe/internal/cell/layer_buffers.h"
#include "gpipe/internal/cell/layer_numbers.h"
#include "gpipe/internal/cell/sinks.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

class GroupSums;
class LeafSums;

// Which part of a cell's backward is run.
enum class BackwardPart : uint8_t {
  kWhole,
  kInputs,   // the gradients that previous stages wait for; includes the recompute, if any
  kWeights,  // the remaining gradients
};

// One backward of one cell.
struct BackwardTask {
  BackwardPart part = BackwardPart::kWhole;
  LeafSums* leaf_sums = nullptr;  // the sums of the micro-batch
  // Receives the gradients of the targets of the cell's loss, if any are wanted.
  Packet* target_gradients = nullptr;
  GroupSums* group_sums = nullptr;  // the stage's sums; null: the leaves' .grad get the gradients
};

// Where a backward starts. Gradients of one node are added up in the order of these roots.
struct Roots {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;

  void add(torch::autograd::Edge edge, at::Tensor gradient) {
    edges.push_back(std::move(edge));
    gradients.push_back(std::move(gradient));
  }
};

// The part of autograd's graph that a forward, a recompute or a loss leaves for a backward.
//
// Thread-safety: none.
class CellGraph {
 public:
  class Walk;

  // Make the graph in this order. First add the sinks: the cell's inputs, or the outputs that a
  // loss starts from; and the targets of a loss.
  Sinks& inputs() { return inputs_; }
  Sinks& targets() { return targets_; }
  // Then let the numbers of the layers begin(), and end each layer; see layer_numbers.h.
  LayerNumbers& layers() { return layers_; }
  // Adds item `item` of packet `packet` of the outputs. The outputs' gradients are added up in the
  // order of the calls.
  void add_output(size_t packet, size_t item, const at::Tensor& tensor);
  // The draws of functions that may repeat them in their backward: see RandomStreamsScope.
  std::vector<DrawRecord>& draws() { return draws_; }

  // Appends the graph of a loss that was computed directly on this graph's outputs, with no sinks
  // in between. The loss is then the only output.
  void append_loss(CellGraph loss);

  // Runs that part of the backward, as walk.settings says (keep_graph only with kWhole). It starts
  // from `roots` and then from the outputs, whose gradients are given as packets; kWeights takes
  // neither, because it continues where kInputs stopped. Adds to the leaves' gradients (not with
  // kInputs), unless `walk` says otherwise, and returns the gradients of the inputs (none with
  // kWeights). Unless the graph is kept, it is freed, except for what kWeights needs after kInputs.
  // kInputs and kWeights together equal kWhole, bit for bit.
  //
  // `layer`: the position of the layer to name in error messages. It is the last one until a node
  // fails, or until one is reached that `walk` refuses; then Walk::layer().
  std::vector<Packet> backward(std::vector<Packet> gradients, Roots roots, BackwardPart part,
                               Walk& walk, int64_t& layer);

 private:
  struct Output {
    uint32_t packet;
    uint32_t item;
    torch::autograd::Edge edge;
  };
  void add_roots(std::vector<Packet> gradients, Roots& roots);
  void run(Roots roots, BackwardPart part, Walk& walk);
  void release(BackwardPart part);

  Sinks inputs_;
  Sinks targets_;
  c10::SmallVector<Output, 2> outputs_;  // the outputs that require a gradient
  LayerNumbers layers_;
  std::vector<DrawRecord> draws_;
  WeightBackward weights_;  // between the halves of a split backward
};

// Answers the questions that a walk asks (WalkVisitor), for several CellGraphs in turn. It makes
// the random numbers that users' code draws depend only on what is computed, and knows which layer
// a walk has reached. Derived classes decide about leaves, and about graphs from outside.
class CellGraph::Walk : public WalkVisitor {
 public:
  explicit Walk(CellRandom random) : random_(random) {}

  void before_users_code(const torch::autograd::Node& node, uint64_t next) final {
    random_.before_users_code(node, next);
  }

  // The position of the layer that the walk has reached: see LayerNumbers::reached().
  int64_t layer() const { return layers_->reached(progress); }

  // Receives the gradients of the loss's targets. The packet stays as it is if no target wants a
  // gradient.
  Packet* target_gradients = nullptr;

 protected:
  // The number of the thread that made the graph's nodes, as the nodes have it.
  uint64_t thread() const { return layers_->own_nodes().thread; }

 private:
  friend class CellGraph;
  void begin(const CellGraph& graph);  // sets the sinks and nodes that belong to the graph

  CellRandom random_;
  const LayerNumbers* layers_ = nullptr;  // those of the graph that is, or was, walked
};

// What a cell keeps between its forward and its backward.
struct Cell {
  // The graph of the layers and, unless the cell is checkpointed, of the loss. A checkpointed cell
  // has it from its recompute on.
  CellGraph graph;

  // Present in a checkpointed cell.
  struct Recompute {
    std::vector<Packet> inputs;
    std::vector<Fingerprint> fingerprints;  // [output that requires a gradient]
    GivenGenerators given;                  // generators that layers gave in its forward
    std::vector<BufferValue> buffers;       // buffers that forwards change, before this forward
    std::optional<CellGraph> graph = {};    // the forward's graph, if it may be used (LayerBuffers)
    bool done = false;                      // the graph was made again and has not run its backward
  };
  std::optional<Recompute> recompute;
  std::vector<BufferHandle> held;   // buffers that a checkpointed cell's graph may have saved
  std::vector<SavedBuffer> saved;   // buffers that the waiting graph has saved and that change
  std::unique_ptr<CellGraph> loss;  // the loss's graph, from detached outputs on; null: none

  // The gradient of the loss. Undefined if there is no loss here or this micro-batch does not
  // count.
  at::Tensor seed;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_CELL_H_
