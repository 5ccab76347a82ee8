// Cell: what one micro-batch in one stage keeps between its forward and its backward.
//
// The cell's graph is local. It begins at Sinks, where the gradients of the cell's inputs end. Its
// outputs are edges whose gradients are given. A CellGraph knows nothing about layers except where
// their nodes end; Stage runs the layers, in the forward and in a recompute. The graph of a loss is
// one more CellGraph, either behind the graph of the layers or joined to it.
#ifndef GPIPE_INTERNAL_CELL_CELL_H_
#define GPIPE_INTERNAL_CELL_CELL_H_

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/backward/gradient_sink.h"
#include "gpipe/internal/backward/split_backward.h"
#include "gpipe/internal/backward/walk_visitor.h"
#include "gpipe/internal/cell/fingerprint.h"
#include "gpipe/internal/cell/layer_buffers.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/packet.h"

namespace gpipe::internal {

class ModelState;

// Which part of a cell's backward is run.
enum class BackwardPart : uint8_t {
  kWhole,
  kInputs,   // the gradients that previous stages wait for; includes the recompute, if any
  kWeights,  // the remaining gradients
};

// Tensors, by packet, whose gradients end in one GradientSink.
class Sinks {
 public:
  // Adds the next tensor of a packet. If `wanted`, its gradient ends here: see
  // GradientSink::attach().
  void add(size_t packet, const at::Tensor& tensor, bool wanted);

  // Removes and returns the gradients that have arrived, so each is returned once. There are as
  // many items as were added; an item is undefined if its gradient has not arrived.
  std::vector<Packet> take();

  // The node at which the gradients end; null if no gradient is wanted.
  const GradientSink* node() const { return sink_.get(); }

 private:
  NodePtrTo<GradientSink> sink_;
  c10::SmallVector<c10::SmallVector<int, 2>, 1> places_;  // [packet][item] index in the sink, or -1
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

// The random numbers that user code (hooks, custom functions) draws in a cell's backward.
struct CellRandom {
  RandomStreams* streams = nullptr;
  uint64_t step_seed = 0;
  int64_t micro_batch = 0;
  int64_t first_layer = 0;            // the index in the model of the stage's first layer
  const ModelState* model = nullptr;  // null: no leaf is registered
};

// The part of autograd's graph that a forward, a recompute or a loss leaves for a backward.
//
// Layers have positions. 0 is the stage's first layer. -1 stands for nodes that were made before
// it, and the number of layers stands for the loss behind them.
//
// Thread-safety: none.
class CellGraph {
 public:
  class Walk;

  // Make the graph in this order. First add the sinks: the cell's inputs, or the outputs that a
  // loss starts from; and the targets of a loss.
  Sinks& inputs() { return inputs_; }
  Sinks& targets() { return targets_; }
  // Then call begin(). Nodes that this thread makes after it belong to the graph. They are nodes of
  // layers, each of which is closed with end_layer(). After begin_loss(), they are nodes of a loss
  // alone, which comes after that many layers.
  void begin();
  void begin_loss(size_t layers);
  void end_layer() { layer_ends_.push_back(at::sequence_number::peek()); }
  // Called instead of end_layer() for all layers at once, if a node stands for several of them.
  void end_layers_as_one(size_t layers) {
    layer_ends_.assign(layers, at::sequence_number::peek());
    undivided_ = true;
  }
  // The nodes that this thread has made since begin().
  NodeRange own_nodes() const { return {thread_, begin_}; }
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

  // The positions that messages name. In the graph of a loss alone, everything belongs to the loss.
  int64_t last_layer() const;
  int64_t before_layers() const;
  int64_t layer_of(uint64_t sequence_nr) const;
  // The lowest sequence number that a node of that layer may have.
  uint64_t start_of(int64_t layer) const;

  Sinks inputs_;
  Sinks targets_;
  c10::SmallVector<Output, 2> outputs_;  // the outputs that require a gradient
  // Nodes made in layer k have sequence numbers below layer_ends_[k] and not below the end before
  // it (for the first layer: not below begin_). All of them are made on thread_.
  uint64_t thread_ = 0;
  uint64_t begin_ = 0;
  c10::SmallVector<uint64_t, 8> layer_ends_;
  bool has_layers_ = true;
  bool undivided_ = false;  // nodes before the first layer's end belong to no single layer
  bool has_loss_ = false;
  std::vector<DrawRecord> draws_;
  WeightBackward weights_;  // between the halves of a split backward
};

// Answers the questions that a walk asks (WalkVisitor), for several CellGraphs in turn. It makes
// the random numbers that users' code draws depend only on what is computed, and knows which layer
// a walk has reached. Derived classes decide about leaves, and about graphs from outside.
class CellGraph::Walk : public WalkVisitor {
 public:
  explicit Walk(CellRandom random) : random_(random) {}

  void before_users_code(const torch::autograd::Node& node, uint64_t next) final;

  // The position of the layer whose node runs, or that leads to the node which the walk has
  // reached. -1: not known. If only the loss, or a single layer, is possible, the result is its
  // position.
  int64_t layer() const;

  // Receives the gradients of the loss's targets. The packet stays as it is if no target wants a
  // gradient.
  Packet* target_gradients = nullptr;

 protected:
  // The number of the thread that made the graph's nodes, as the nodes have it.
  uint64_t thread() const { return graph_->thread_; }

 private:
  friend class CellGraph;
  void begin(const CellGraph& graph);  // sets the sinks and nodes that belong to the graph
  bool repeat_forward(const torch::autograd::Node& node, uint64_t next);
  void enter_leaf(const at::Tensor& leaf);
  void enter(int64_t layer, uint64_t node);

  const CellRandom random_;
  const CellGraph* graph_ = nullptr;  // the graph whose backward runs, or ran last
  uint64_t others_ = 0;               // number of leaves so far that no layer has registered
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
