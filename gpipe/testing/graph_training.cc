#include "gpipe/testing/graph_training.h"

#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <utility>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe::testing {

void expect_same(const Trace& with, const Trace& without) {
  ASSERT_EQ(with.size(), without.size());
  for (size_t k = 0; k < with.size(); ++k) {
    ASSERT_EQ(with[k].defined(), without[k].defined()) << k;
    if (!with[k].defined()) continue;
    ASSERT_THAT(with[k], EqualsBitwise(without[k])) << k;
  }
}

void add_state(GPipe& pipe, Trace& trace) {
  for (const at::Tensor& parameter : pipe->parameters()) {
    trace.push_back(on_host(parameter.detach()));
    trace.push_back(on_host(parameter.grad()));
  }
  for (const at::Tensor& buffer : pipe->buffers()) trace.push_back(on_host(buffer));
}

Trace train(GraphTraining training, bool graphs, std::vector<GraphUse>* use) {
  GPipe pipe(training.model, training.options.graphs(graphs));
  torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  manual_seed(7);
  Trace trace;
  for (int64_t k = 0; k < training.steps; ++k) {
    if (training.before_step) training.before_step(pipe, k);
    const Tensors targets = on(pipe->devices().back(), training.targets);
    Tensors inputs = on(pipe->devices().front(), training.inputs);
    for (at::Tensor& input : inputs) {
      input.mul_(1 + 0.1 * static_cast<double>(k));
      if (training.input_gradients) input.requires_grad_();
    }
    StepOptions options = training.step;
    const StepResult result =
        pipe->step(inputs, targets, training.loss, options.keep_outputs(true));
    trace.push_back(at::scalar_tensor(result.loss, at::kDouble));
    for (const at::Tensor& output : result.outputs) trace.push_back(on_host(output));
    for (const at::Tensor& input : inputs) trace.push_back(on_host(input.grad()));
    add_state(pipe, trace);
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/k % 2 == 0);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& output : pipe->forward(inputs)) trace.push_back(on_host(output));
  }
  if (use != nullptr) *use = pipe->graph_use();
  return trace;
}

std::vector<GraphUse> expect_same_training(const std::function<GraphTraining()>& make) {
  std::vector<GraphUse> use;
  const Trace without = train(make(), /*graphs=*/false);
  const Trace with = train(make(), /*graphs=*/true, &use);
  expect_same(with, without);
  return use;
}

std::vector<std::string> graphs_of(const std::vector<GraphUse>& use) {
  std::vector<std::string> texts;
  for (const GraphUse& stage_use : use) {
    texts.push_back(!stage_use.reason.empty() ? "left alone: " + stage_use.reason
                    : stage_use.replayed > 0  ? "replayed"
                    : stage_use.recorded > 0  ? "recorded, not replayed"
                                              : "not recorded");
  }
  return texts;
}

GPipeOptions options_for(std::vector<int64_t> balance, int64_t chunks, Checkpoint mode) {
  const auto stages = static_cast<int64_t>(balance.size());
  return GPipeOptions(std::move(balance)).devices(devices(stages)).chunks(chunks).checkpoint(mode);
}

std::shared_ptr<FunctionImpl<at::Tensor, at::Tensor>> tensor_layer(
    std::function<at::Tensor(at::Tensor)> f) {
  return layer<at::Tensor, at::Tensor>(std::move(f));
}

}  // namespace gpipe::testing
