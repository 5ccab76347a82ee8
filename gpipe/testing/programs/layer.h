// Layer: the layers of random programs, and the objects that the layers of a model share.
#ifndef GPIPE_TESTING_PROGRAMS_LAYER_H_
#define GPIPE_TESTING_PROGRAMS_LAYER_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/tensors/packet.h"
#include "gpipe/options.h"
#include "skip/namespace.h"

namespace gpipe::testing::programs {

using internal::ValueKind;

using Random = std::mt19937_64;

// A random number, uniform in [low, high].
int64_t pick(Random& random, int64_t low, int64_t high);
// True with probability 1 / `count`.
bool once_in(Random& random, int64_t count);

// The objects that the layers of one model share. They are looked up by number and made at first
// use, so that a program stays valid when layers are left out of it.
struct Workshop {
  at::Tensor tied_parameter(int64_t number, at::IntArrayRef shape);

  // Whether only the first layer that uses a tied parameter registers it, and the others name it
  // (TiedLayer). Otherwise all of them register it.
  bool names_tied = false;
  std::set<int64_t> registered;  // the tied parameters that a layer has registered, if names_tied

  std::map<int64_t, at::Tensor> tied;
  std::map<int64_t, torch::nn::AnyModule> modules;
  std::map<int64_t, skip::Namespace> namespaces;
  bool copies_skips = false;  // popped values have memory of their own, as from another device
  // Counts of hooks, which are compared between the plain model and the pipeline.
  std::map<int64_t, std::shared_ptr<std::atomic<int64_t>>> counters;
};

// A layer as data: its text, and a function that makes it.
struct Layer {
  std::string text;
  std::function<torch::nn::AnyModule(Workshop&)> make;
  bool in_place = false;  // whether the layer changes its input in place
  // The next layer may change the output in place, because the output was not saved for a backward.
  bool fresh = false;
  // A tensor leaves the layer by several routes, so gradients are exact only up to the order of
  // sums.
  bool spreads = false;
  // Another value that leaves the layer shares the output's memory, so a change of the output in
  // place also changes that value.
  bool aliases = false;
  bool needs_two_rows = false;  // the layer has statistics over the rows
  // The kinds of the layer's input and output values in the trial model.
  ValueKind in = ValueKind::kTensor;
  ValueKind out = ValueKind::kTensor;
  bool batch_norm = false;
};

// A skip that waits for its pop.
struct OpenSkip {
  int64_t number;
  bool isolated;      // true: it has its own namespace; false: its own name
  at::Tensor sample;  // the value on the trial model's rows, as in State
};

// The state after the layers drawn so far, which a trial model has run on a few rows.
struct State {
  ValueKind kind = ValueKind::kTensor;
  Tensors values;  // values[0] is the main one: a float tensor (rows, 1 to 3 more dimensions)
  bool fresh = false;
  std::vector<OpenSkip> skips;
  std::vector<std::vector<int64_t>> tied_shapes;  // by number
  std::vector<Layer> shared_modules;              // by number
  int64_t next_number = 0;                        // the next number for a skip or a counter
  bool trainable = false;                         // whether some layer has a parameter to train
  Workshop workshop;

  const at::Tensor& main() const { return values[0]; }
};

// A parameter of a layer.
struct Parameter {
  std::vector<int64_t> shape;
  int64_t tied = -1;  // its number in the workshop; -1: it is not tied
  bool frozen = false;
};

// A drawn layer, and how it changes the state once it has been tried.
struct Draw {
  Layer layer;
  std::function<void(State&)> taken;
};

using Body = std::function<Tensors(Tensors)>;

// A layer that is a function, in the C++ types that `in` and `out` name.
torch::nn::AnyModule function_module(ValueKind in, ValueKind out, Body body);

// A random kind of value that can hold `count` values.
ValueKind pick_kind(Random& random, size_t count);

// `text` with the variables of the catalog (channels, last, width) replaced by their values.
std::string with_numbers(std::string text, int64_t channels, int64_t last, int64_t width);

std::string shape_text(at::IntArrayRef shape);

// A text like "torch::Tensor x" or "gpipe::Tensors v".
std::string argument_text(ValueKind kind);

}  // namespace gpipe::testing::programs

#endif  // GPIPE_TESTING_PROGRAMS_LAYER_H_
