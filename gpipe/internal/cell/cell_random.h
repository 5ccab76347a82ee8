// CellRandom: the random numbers that users' code (hooks, custom functions) draws in a cell's
// backward.
//
// They depend only on what is computed: on the step, the micro-batch, the layer and the node there.
#ifndef GPIPE_INTERNAL_CELL_CELL_RANDOM_H_
#define GPIPE_INTERNAL_CELL_CELL_RANDOM_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/cell/layer_numbers.h"
#include "gpipe/internal/operators/random_streams.h"

namespace gpipe::internal {

class ModelState;

// Thread-safety: none; called on the thread that walks.
class CellRandom {
 public:
  // `first_layer`: the index in the model of the stage's first layer. `model`: null if no leaf is
  // registered.
  CellRandom(RandomStreams* streams, uint64_t step_seed, int64_t micro_batch,
             int64_t first_layer = 0, const ModelState* model = nullptr)
      : streams_(streams),
        step_seed_(step_seed),
        micro_batch_(micro_batch),
        first_layer_(first_layer),
        model_(model) {}

  // Called when a walk begins through a graph that has these layers, and whose forward has made
  // these draws. Both must outlive the walk.
  void begin(const LayerNumbers& layers, const std::vector<DrawRecord>& draws);

  // See WalkVisitor.
  void before_users_code(const torch::autograd::Node& node, uint64_t next);

 private:
  bool repeat_forward(const torch::autograd::Node& node, uint64_t next);
  void enter_leaf(const at::Tensor& leaf);

  RandomStreams* streams_;
  uint64_t step_seed_;
  int64_t micro_batch_;
  int64_t first_layer_;
  const ModelState* model_;
  const LayerNumbers* layers_ = nullptr;
  const std::vector<DrawRecord>* draws_ = nullptr;
  uint64_t others_ = 0;  // number of leaves so far that no layer has registered
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_CELL_RANDOM_H_
