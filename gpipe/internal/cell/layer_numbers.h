// LayerNumbers: which layer of a stage has made a node of a cell's graph, by the sequence numbers
// of autograd's nodes.
//
// Layers have positions. 0 is the stage's first layer. -1 stands for nodes that were made before
// it, and the number of layers stands for the loss behind them.
#ifndef GPIPE_INTERNAL_CELL_LAYER_NUMBERS_H_
#define GPIPE_INTERNAL_CELL_LAYER_NUMBERS_H_

#include <ATen/SequenceNumber.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

#include "gpipe/internal/backward/walk_visitor.h"

namespace gpipe::internal {

// Thread-safety: none.
class LayerNumbers {
 public:
  // Nodes that this thread makes after begin() belong to the graph. They are nodes of layers, each
  // of which is closed with end_layer(). After begin_loss(), they are nodes of a loss alone, which
  // comes after that many layers.
  void begin();
  void begin_loss(size_t layers);
  void end_layer() { ends_.push_back(at::sequence_number::peek()); }
  // Called instead of end_layer() for all layers at once, if a node stands for several of them.
  void end_layers_as_one(size_t layers) {
    ends_.assign(layers, at::sequence_number::peek());
    undivided_ = true;
  }
  // The nodes that follow are those of a loss that was computed directly on the layers' outputs.
  void add_loss() { has_loss_ = true; }

  // The nodes that this thread has made since begin().
  NodeRange own_nodes() const { return {thread_, begin_}; }

  // The position of the last layer, or of the loss if there is one.
  int64_t last() const;

  // The position of the layer whose node runs, or that leads to the node which the walk has
  // reached. -1: not known. If only the loss, or a single layer, is possible, the result is its
  // position.
  int64_t reached(const WalkProgress& progress) const;

  // Where a node stands: in which layer, and which node it is there, counted from 1. Nodes that
  // belong to no single layer count as the first one's; nodes from before it are number 0.
  struct Place {
    int64_t layer;
    uint64_t node;
  };
  Place place_of(uint64_t sequence_nr) const;

 private:
  // The positions that messages name. In the graph of a loss alone, everything belongs to the loss.
  int64_t before() const;
  int64_t layer_of(uint64_t sequence_nr) const;

  // Nodes made in layer k have sequence numbers below ends_[k] and not below the end before it (for
  // the first layer: not below begin_). All of them are made on thread_.
  uint64_t thread_ = 0;
  uint64_t begin_ = 0;
  c10::SmallVector<uint64_t, 8> ends_;
  bool has_layers_ = true;
  bool undivided_ = false;  // nodes before the first layer's end belong to no single layer
  bool has_loss_ = false;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_LAYER_NUMBERS_H_
