// GraphTraining: a training that is run with and without GPipeOptions::graphs, for tests that both
// leave the same bits.
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

// What a training leaves, in an order of its own. Undefined tensors are gradients that are missing.
using Trace = std::vector<at::Tensor>;

// Fails the test at the first difference.
void expect_same(const Trace& with, const Trace& without);

// Parameters, their gradients and buffers.
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

// Steps of a training, and a forward without gradients after each.
[[nodiscard]] Trace train(GraphTraining training, bool graphs,
                          std::vector<GraphUse>* use = nullptr);

// Trains without and with graphs, each from a training of `make`, and expects the same. Returns
// what the second says of its graphs: without a look at it, a test would also pass if graphs gave
// up.
[[nodiscard]] std::vector<GraphUse> expect_same_training(
    const std::function<GraphTraining()>& make);

// Of each stage: "replayed", "recorded, not replayed", "not recorded", or "left alone: " and why.
[[nodiscard]] std::vector<std::string> graphs_of(const std::vector<GraphUse>& use);

// A stage for each part of `balance`, on devices(), without graphs.
GPipeOptions options_for(std::vector<int64_t> balance, int64_t chunks,
                         Checkpoint mode = Checkpoint::kExceptLast);

std::shared_ptr<FunctionImpl<at::Tensor, at::Tensor>> tensor_layer(
    std::function<at::Tensor(at::Tensor)> f);

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_GRAPH_TRAINING_H_
