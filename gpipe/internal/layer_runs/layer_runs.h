// LayerRuns: runs a model's layers one after the other, each as a stage of its own, and tells when
// each begins and ends. Profiles are made with it.
#ifndef GPIPE_INTERNAL_LAYER_RUNS_LAYER_RUNS_H_
#define GPIPE_INTERNAL_LAYER_RUNS_LAYER_RUNS_H_

#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/options.h"
#include "gpipe/schedule/schedule.h"
#include "skip/layout.h"

namespace gpipe::internal {

class Pipeline;
struct Value;
enum class ValueKind : uint8_t;

// The moment at which the forward or the backward of a piece (see LayerRuns), or a half of its
// backward, begins or ends.
struct LayerEvent {
  int64_t piece = 0;
  bool backward = false;  // a backward, or a half of one
  bool begin = false;
  std::chrono::steady_clock::time_point time;  // when the device has finished all work up to here
  bool weights = false;  // the second half of a split backward: the gradients of weights
};

// How backwards are run.
enum class Backwards : uint8_t {
  kWhole,
  kSplit,  // first the gradients of all inputs, then those of all weights
};
using LayerObserver = std::function<void(const LayerEvent&)>;

// Returns, by piece, its number of layers (see LayerRuns). Throws c10::ValueError for a layer that
// is null or occurs twice.
std::vector<int64_t> pieces_of(const torch::nn::Sequential& model);

// LayerRuns runs the code of a pipeline's stages, without checkpoints. So skips, several values and
// in-place layers work as they do in a pipeline, and a time includes everything that a stage costs.
// One worker runs all stages. It is the calling thread, unless a number of threads is asked for.
// The loss, which gives every output a gradient of ones, belongs to no layer.
//
// A layer whose argument cannot travel between stages runs in one stage with the layers before it.
// Such a group of layers is a piece. Almost always each layer is a piece.
//
// Requirements: the model has a layer, and it and all inputs are on one device.
//
// Thread-safety: none. Not callable from inside a layer of a pipeline.
//
// Throws what GPipe's constructor does for a model that cannot be in a pipeline.
class LayerRuns {
 public:
  // The sizes of what goes from layer to layer, in bytes for one micro-batch.
  struct Traffic {
    struct Skip {
      int64_t from;  // layers
      int64_t to;
      int64_t bytes;
    };
    std::vector<int64_t> outputs;  // [piece]
    std::vector<Skip> skips;
  };

  // `cpu_threads`: the intra-op threads of a layer on the CPU. 0 means the calling thread's number.
  // `pieces`: pieces_of(model), or fewer and larger pieces. `defers_batch_norm`: as in
  // GPipeOptions.
  LayerRuns(const torch::nn::Sequential& model, c10::Device device, int64_t cpu_threads,
            std::vector<int64_t> pieces, bool defers_batch_norm = false);
  LayerRuns(const torch::nn::Sequential& model, c10::Device device, int64_t cpu_threads)
      : LayerRuns(model, device, cpu_threads, pieces_of(model)) {}
  ~LayerRuns();
  LayerRuns(const LayerRuns&) = delete;
  LayerRuns& operator=(const LayerRuns&) = delete;

  // Returns, by piece, its number of layers.
  const std::vector<int64_t>& pieces() const { return pieces_; }

  // Runs all forwards, the loss and all backwards of one micro-batch, and adds to the gradients of
  // parameters. `shared`: as in GPipeOptions::shared_inputs. `observer` is called by one thread at
  // a time: at the start of piece 0's forward, at its end, and so on, up to the end of piece 0's
  // backward. An exception of a layer is thrown with the layer in its message.
  void run(const Tensors& inputs, const std::vector<int64_t>& shared, const LayerObserver& observer,
           Backwards backwards = Backwards::kWhole);

  // Runs the forwards alone, as the plain model would.
  Traffic traffic(const Tensors& inputs);

 private:
  Value first_value(const Tensors& inputs) const;

  torch::nn::Sequential model_;
  c10::Device device_;
  std::vector<int64_t> pieces_;
  bool defers_batch_norm_;
  skip::Layout layout_;
  Schedule schedule_;
  Schedule split_schedule_;
  std::optional<ValueKind> input_kind_;
  std::shared_ptr<Pipeline> pipeline_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_LAYER_RUNS_LAYER_RUNS_H_
