// GraphTraining: a training that is run with and without GPipeOptions::graphs, for tests that check
// that both give the same bits.
#ifndef GPIPE_TESTING_GRAPH_TRAINING_H_
#define GPIPE_TESTING_GRAPH_TRAINING_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::testing {

// All results of a training, in a fixed order. Undefined tensors stand for missing gradients.
using Trace = std::vector<at::Tensor>;

// Fails the test at the first difference.
void expect_same(const Trace& with, const Trace& without);

// Appends the parameters, their gradients and the buffers.
void add_state(GPipe& pipe, Trace& trace);

struct GraphTraining {
  torch::nn::Sequential model;
  GPipeOptions options;
  Tensors inputs;
  Tensors targets;
  LossFn loss = &square_loss;
  StepOptions step = StepOptions();
  int64_t steps = 4;
  bool input_gradients = true;
  std::function<void(GPipe& pipe, int64_t step)> before_step = nullptr;
};

// Runs the steps of a training, and a forward without gradients after each step.
[[nodiscard]] Trace train(GraphTraining training, bool graphs,
                          std::vector<GraphUse>* use = nullptr);

// Trains without and with graphs, each time with a new training of `make`, and expects the same
// results. Returns the use of graphs in the second training. A test must check it, or it would also
// pass if no graph was used.
[[nodiscard]] std::vector<GraphUse> expect_same_training(
    const std::function<GraphTraining()>& make);

// For each stage a text: "replayed", "recorded, not replayed", "not recorded", or "left alone: "
// and the reason.
[[nodiscard]] std::vector<std::string> graphs_of(const std::vector<GraphUse>& use);

// Options for a stage for each part of `balance`, on devices(), without graphs.
GPipeOptions options_for(std::vector<int64_t> balance, int64_t chunks,
                         Checkpoint mode = Checkpoint::kExceptLast);

std::shared_ptr<FunctionImpl<at::Tensor, at::Tensor>> tensor_layer(
    std::function<at::Tensor(at::Tensor)> f);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_GRAPH_TRAINING_H_
