// Cell: what one micro-batch in one stage keeps between its forward and its backward.
//
// Its graph is local: it begins at Sinks, where the gradients of its inputs end, and its outputs
// are edges whose gradients are given. A CellGraph knows nothing of layers but where their nodes
// end; Stage runs them, forward and in a recompute. The graph of a loss is one more CellGraph,
// behind the layers' or joined to it.
#ifndef GPIPE_INTERNAL_CELL_H_
#define GPIPE_INTERNAL_CELL_H_

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/fingerprint.h"
#include "gpipe/internal/gradient_sink.h"
#include "gpipe/internal/local_backward.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/random_streams.h"

namespace gpipe::internal {

// Which part of a cell's backward is run.
enum class BackwardPart : uint8_t {
  kWhole,
  kInputs,   // what the stages before wait for; a recompute, if there is one, is here
  kWeights,  // the rest
};

// Tensors, packet by packet, whose gradients end in one GradientSink.
class Sinks {
 public:
  // The next tensor of a packet. If `wanted`, its gradient ends here: see GradientSink::attach().
  void add(size_t packet, const at::Tensor& tensor, bool wanted);

  // The gradients that have arrived, once: as many items as were added, undefined where none has.
  std::vector<Packet> take();

  // Null: no gradient is wanted.
  const GradientSink* node() const { return sink_.get(); }

 private:
  std::shared_ptr<GradientSink> sink_;
  c10::SmallVector<c10::SmallVector<int, 2>, 1> places_;  // [packet][item] in the sink, or -1
};

// Where a backward starts. Gradients that meet are added up in this order.
struct Roots {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;

  void add(torch::autograd::Edge edge, at::Tensor gradient) {
    edges.push_back(std::move(edge));
    gradients.push_back(std::move(gradient));
  }
};

// Where users' code in a cell's backward, hooks and custom functions, draws random numbers.
struct CellDraws {
  RandomStreams* draws = nullptr;
  uint64_t step_seed = 0;
  int64_t micro_batch = 0;
  int64_t first_layer = 0;  // the number in the model of the stage's first layer
};

// What a backward of a CellGraph needs besides gradients.
struct GraphTask {
  BackwardPart part = BackwardPart::kWhole;
  bool keep = false;  // the graph may run once more; not with a part
  CellDraws draws;
  // As in LocalBackwardOptions; `thread`: on which the graph was made.
  std::function<at::Tensor*(const std::shared_ptr<torch::autograd::Node>&, const at::Tensor&)>
      sum_of;
  std::function<void(const torch::autograd::Node&, uint64_t thread)> enter_foreign;
  // Gets what the targets of a loss wait for; left as it is where there are none.
  Packet* target_gradients = nullptr;
};

// The part of autograd's graph that a forward, or a recompute, or a loss, leaves for a backward.
//
// Layers have positions: 0 is the stage's first one, -1 what was made before it, and the number of
// the layers the loss behind them. Not thread-safe.
class CellGraph {
 public:
  // Making it, in this order. First the sinks: the cell's inputs, or what a loss hangs on; and the
  // targets of a loss.
  Sinks& inputs() { return inputs_; }
  Sinks& targets() { return targets_; }
  // What this thread makes from then on is the graph's: that of layers, each of which ends with
  // end_layer(), or that of a loss alone, behind so many layers.
  void begin();
  void begin_loss(size_t layers);
  void end_layer() { layer_ends_.push_back(at::sequence_number::peek()); }
  // Item `item` of packet `packet` of the outputs. Their gradients are added up in the order of the
  // calls.
  void add_output(size_t packet, size_t item, const at::Tensor& tensor);
  // The draws of functions that may repeat them in their backward: see RandomStreamsScope.
  std::vector<DrawRecord>& draws() { return draws_; }

  // Puts behind this graph that of a loss, which was made on its outputs as they are, with no sinks
  // between. The loss is then the only output.
  void append_loss(CellGraph loss);

  // Runs the part task.part of the backward, from `roots` and then the outputs, whose gradients are
  // given as packets; neither with kWeights, which goes on where kInputs has stopped. Adds to
  // leaves' gradients (not with kInputs) and returns the gradients of the inputs (none with
  // kWeights). Unless task.keep, nothing is left then but, with kInputs, what kWeights needs.
  // kInputs and kWeights together are kWhole, bit for bit.
  //
  // layer: the position of the layer to blame, for messages. The last one until a node fails.
  std::vector<Packet> backward(std::vector<Packet> gradients, Roots roots, GraphTask task,
                               int64_t& layer);

 private:
  struct Output {
    uint32_t packet;
    uint32_t item;
    torch::autograd::Edge edge;
  };
  struct UsersCode;

  void add_roots(std::vector<Packet> gradients, Roots& roots);
  void run(Roots roots, BackwardPart part, const LocalBackwardOptions& options);
  std::vector<Packet> take_input_gradients();
  void release(BackwardPart part);

  // The positions that messages name. All that runs for a loss alone is the loss's.
  int64_t last_layer() const;
  int64_t before_layers() const;
  int64_t layer_of(uint64_t sequence_nr) const;
  // The first number that may be of a node of that layer.
  uint64_t start_of(int64_t layer) const;

  Sinks inputs_;
  Sinks targets_;
  c10::SmallVector<Output, 2> outputs_;  // those that want a gradient
  // Nodes made in layer k have sequence numbers below layer_ends_[k] and not below the one before,
  // or those of the first layer not below begin_; all of them are made on thread_.
  uint64_t thread_ = 0;
  uint64_t begin_ = 0;
  c10::SmallVector<uint64_t, 8> layer_ends_;
  bool has_layers_ = true;
  bool has_loss_ = false;
  std::vector<DrawRecord> draws_;
  WeightBackward weights_;  // between the halves of a split backward
};

// What a cell keeps between its forward and its backward.
struct Cell {
  // Of the layers and, unless the cell is checkpointed, of the loss. A checkpointed cell has it
  // from its recompute on.
  CellGraph graph;

  // A checkpointed cell.
  struct Recompute {
    std::vector<Packet> inputs;
    std::vector<Fingerprint> fingerprints;  // of the outputs that want a gradient
  };
  std::optional<Recompute> recompute;
  std::unique_ptr<CellGraph> loss;  // hangs on detached outputs; null: none

  // The gradient of the loss. Undefined: there is no loss here, or this micro-batch does not count.
  at::Tensor seed;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_H_
