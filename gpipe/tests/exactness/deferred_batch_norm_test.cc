// Tests running statistics with and without GPipeOptions::deferred_batch_norm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/libtorch/versions.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"
#include "interception/interception.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using testing::on_host;

// A user's module with a batch norm that it calls as a function. The pipeline sees only the
// operator.
struct HiddenNormImpl : nn::Module {
  explicit HiddenNormImpl(int64_t channels) {
    running_mean = register_buffer("running_mean", torch::zeros({channels}, torch::kDouble));
    running_var = register_buffer("running_var", torch::ones({channels}, torch::kDouble));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::batch_norm(x, {}, {}, running_mean, running_var, is_training(), 0.1, 1e-5, false);
  }
  torch::Tensor running_mean;
  torch::Tensor running_var;
};
TORCH_MODULE(HiddenNorm);

template <typename Layer>
Layer* layer(const nn::Sequential& model, size_t index) {
  return dynamic_cast<Layer*>(model->ptr(index).get());
}

enum class Entry { kForward, kStep1F1B, kStepGPipe };

nn::Sequential norms(std::optional<double> momentum) {
  testing::manual_seed(3);
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(1)),
                       nn::BatchNorm2d(nn::BatchNormOptions(3).momentum(momentum)), HiddenNorm(3));
  model->to(torch::kDouble);
  return model;
}

LossFn square() {
  return [](const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); };
}

void train(GPipe& pipe, const torch::Tensor& host_input, Entry entry) {
  const torch::Tensor input = host_input.to(testing::device());
  if (entry == Entry::kForward) {
    pipe->forward(input).pow(2).mean().backward();
    return;
  }
  StepOptions options;
  if (entry == Entry::kStepGPipe) options.schedule(Schedule::gpipe);
  pipe->step({input}, {}, square(), options);
}

GPipeOptions options(int64_t chunks, Checkpoint mode, bool deferred) {
  return GPipeOptions({1, 2})
      .devices(testing::devices(2))
      .chunks(chunks)
      .checkpoint(mode)
      .deferred_batch_norm(deferred);
}

// Whether `a` is `b` up to 1e-6, relative or absolute: the sum of the sums over micro-batches is
// rounded differently from one sum over the whole batch, which is in double here.
::testing::AssertionResult close(const torch::Tensor& a, const torch::Tensor& b) {
  if (torch::allclose(on_host(a).to(torch::kDouble), on_host(b).to(torch::kDouble), 1e-6, 1e-6)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << a << "\nis not\n" << b;
}

class Deferred
    : public ::testing::TestWithParam<std::tuple<Checkpoint, Entry, std::optional<double>>> {};

// The input of the first norm does not depend on any norm, so its statistics over the mini-batch
// must be those of the plain model over the whole batch. The hidden norm sees inputs that were
// normalized by micro-batch, so its statistics are compared with those of exactly these inputs.
TEST_P(Deferred, RunningStatisticsAreThoseOfTheWholeBatch) {
  const auto [mode, entry, momentum] = GetParam();
  // For the cumulative average, LibTorch's layer reads the count, which waits for the device.
  std::optional<testing::HostWaitsAllowed> waits;
  if (!momentum) waits.emplace();
  nn::Sequential plain = norms(momentum);
  nn::Sequential module = norms(momentum);
  GPipe pipe(module, options(4, mode, /*deferred=*/true));
  testing::manual_seed(5);
  // The lengths include short and odd mini-batches: 2 rows make two micro-batches, 7 rows make
  // four, of 2, 2, 2 and 1.
  for (const int64_t rows : {8, 2, 7, 8}) {
    const torch::Tensor input = torch::randn({rows, 2, 4, 4}, torch::kDouble) * 3 + 5;
    {
      torch::NoGradGuard no_grad;
      plain->forward(input);
    }
    train(pipe, input, entry);
    auto& expected = *layer<nn::BatchNorm2dImpl>(plain, 1);
    auto& actual = *layer<nn::BatchNorm2dImpl>(module, 1);
    EXPECT_TRUE(close(actual.running_mean, expected.running_mean));
    EXPECT_TRUE(close(actual.running_var, expected.running_var));
    EXPECT_EQ(actual.num_batches_tracked.item<int64_t>(),
              expected.num_batches_tracked.item<int64_t>());
  }
  EXPECT_EQ(plain->named_buffers().keys(), pipe->named_buffers().keys());
  // The first norm gives the hidden norm inputs with mean 0 in every micro-batch.
  EXPECT_TRUE(close(layer<HiddenNormImpl>(module, 2)->running_mean, torch::zeros({3})));
  EXPECT_FALSE(close(layer<HiddenNormImpl>(module, 2)->running_var, torch::ones({3})));
  // An evaluation must use the gathered statistics.
  plain->eval();
  pipe->eval();
  const torch::Tensor probe = torch::randn({4, 2, 4, 4}, torch::kDouble);
  torch::NoGradGuard no_grad;
  auto until_norm = [](nn::Sequential& model, const torch::Tensor& x) {
    return layer<nn::BatchNorm2dImpl>(model, 1)->forward(
        layer<nn::Conv2dImpl>(model, 0)->forward(x).to(
            layer<nn::BatchNorm2dImpl>(model, 1)->weight.device()));
  };
  EXPECT_TRUE(close(until_norm(module, probe.to(testing::device())), until_norm(plain, probe)));
}

INSTANTIATE_TEST_SUITE_P(
    All, Deferred,
    ::testing::Combine(::testing::Values(Checkpoint::kAlways, Checkpoint::kExceptLast,
                                         Checkpoint::kNever),
                       ::testing::Values(Entry::kForward, Entry::kStep1F1B, Entry::kStepGPipe),
                       ::testing::Values(std::optional<double>(0.1), std::optional<double>())));

// The means are large and the variances small. With a sum of squares the variance would be a
// difference of large numbers, for which float has too few digits.
TEST(DeferredBatchNorm, DoesNotCancelInFloat) {
  nn::Sequential plain(nn::BatchNorm1d(2));
  nn::Sequential module(nn::BatchNorm1d(2));
  plain->to(torch::kDouble);
  GPipe pipe(module,
             GPipeOptions({1}).devices(testing::devices(1)).chunks(8).deferred_batch_norm(true));
  testing::manual_seed(1);
  const torch::Tensor input = torch::randn({64, 2}) * 0.1 + 1000;
  plain->forward(input.to(torch::kDouble));
  pipe->forward(input.to(testing::device()));
  const torch::Tensor expected = layer<nn::BatchNorm1dImpl>(plain, 0)->running_var;
  const torch::Tensor actual = layer<nn::BatchNorm1dImpl>(module, 0)->running_var;
  // The variance is in float, which has 24 bits: each rounding changes it by up to 6e-8.
  EXPECT_TRUE(
      torch::allclose(on_host(actual).to(torch::kDouble), expected, /*rtol=*/1e-6, /*atol=*/0));
}

TEST(DeferredBatchNorm, AFailureLeavesTheStatisticsAsTheyWere) {
  nn::Sequential module = norms(0.1);
  GPipe pipe(module, options(4, Checkpoint::kExceptLast, true));
  const torch::Tensor input = torch::randn({8, 2, 4, 4}, torch::kDouble);
  train(pipe, input, Entry::kStep1F1B);
  std::vector<torch::Tensor> before;
  for (const auto& buffer : module->buffers()) before.push_back(buffer.clone());
  int calls = 0;
  LossFn failing = [&](const Tensors& outputs, const Tensors&) {
    if (++calls == 3) throw std::runtime_error("third");
    return outputs[0].mean();
  };
  EXPECT_THROW(pipe->step({input.to(testing::device())}, {}, failing), std::runtime_error);
  std::vector<torch::Tensor> after = module->buffers();
  ASSERT_EQ(after.size(), before.size());
  for (size_t k = 0; k < before.size(); ++k) EXPECT_THAT(after[k], EqualsBitwise(before[k])) << k;
}

TEST(DeferredBatchNorm, ALayerInEvalModeIsLeftAlone) {
  nn::Sequential module = norms(0.1);
  layer<nn::BatchNorm2dImpl>(module, 1)->eval();
  GPipe pipe(module, options(4, Checkpoint::kAlways, true));
  train(pipe, torch::randn({8, 2, 4, 4}, torch::kDouble), Entry::kForward);
  EXPECT_THAT(on_host(layer<nn::BatchNorm2dImpl>(module, 1)->running_mean),
              EqualsBitwise(torch::zeros({3}, torch::kDouble)));
  EXPECT_EQ(layer<nn::BatchNorm2dImpl>(module, 1)->num_batches_tracked.item<int64_t>(), 0);
}

// Outputs and gradients must be those of plain batch norm, micro-batch by micro-batch.
TEST(DeferredBatchNorm, ChangesOnlyTheRunningStatistics) {
  nn::Sequential plain_module = norms(0.1);
  nn::Sequential deferred_module = norms(0.1);
  GPipe plain(plain_module, options(4, Checkpoint::kExceptLast, false));
  GPipe deferred(deferred_module, options(4, Checkpoint::kExceptLast, true));
  const torch::Tensor input = torch::randn({7, 2, 4, 4}, torch::kDouble).to(testing::device());
  StepOptions keep;
  keep.keep_outputs(true);
  const StepResult a = plain->step({input}, {}, square(), keep);
  const StepResult b = deferred->step({input}, {}, square(), keep);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_THAT(a.outputs[0], EqualsBitwise(b.outputs[0]));
  const auto gradients = deferred->named_parameters();
  for (const auto& p : plain->named_parameters()) {
    EXPECT_THAT(gradients[p.key()].grad(), EqualsBitwise(p.value().grad())) << p.key();
  }
}

// Without the option, statistics change once per micro-batch in every mode. A recompute does not
// count.
TEST(PlainBatchNorm, CountsMicroBatchesOnceInEveryMode) {
  std::vector<torch::Tensor> means;
  for (Checkpoint mode : {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    nn::Sequential module = norms(0.1);
    GPipe pipe(module, options(4, mode, false));
    testing::manual_seed(9);
    train(pipe, torch::randn({8, 2, 4, 4}, torch::kDouble), Entry::kForward);
    EXPECT_EQ(layer<nn::BatchNorm2dImpl>(module, 1)->num_batches_tracked.item<int64_t>(), 4);
    means.push_back(torch::cat({layer<nn::BatchNorm2dImpl>(module, 1)->running_mean,
                                layer<HiddenNormImpl>(module, 2)->running_var}));
    EXPECT_THAT(means[0], EqualsBitwise(means.back())) << to_text(mode);
  }
}

// A layer before the norm gets other gradients than in the plain model, whose norm normalizes the
// whole mini-batch at once, so from the second step on the norm sees other inputs. Then the
// statistics must differ.
TEST(DeferredBatchNorm, StatisticsDriftFromThePlainModelsOnceWeightsWereUpdated) {
  nn::Sequential plain = norms(0.1);
  nn::Sequential module = norms(0.1);
  GPipe pipe(module, options(4, Checkpoint::kAlways, /*deferred=*/true));
  testing::manual_seed(5);
  const torch::Tensor input = torch::randn({8, 2, 4, 4}, torch::kDouble) * 3 + 5;
  const torch::Tensor weight = torch::randn({8, 3, 4, 4}, torch::kDouble);
  const auto& expected = *layer<nn::BatchNorm2dImpl>(plain, 1);
  const auto& actual = *layer<nn::BatchNorm2dImpl>(module, 1);
  for (int step = 0; step < 2; ++step) {
    const torch::Tensor plain_output = plain->forward(input);
    const torch::Tensor pipe_output = on_host(pipe->forward(input.to(testing::device())));
    EXPECT_FALSE(close(plain_output, pipe_output)) << "normalized by micro-batch";
    EXPECT_EQ(static_cast<bool>(close(actual.running_mean, expected.running_mean)), step == 0);
    EXPECT_EQ(static_cast<bool>(close(actual.running_var, expected.running_var)), step == 0);
    (plain_output * weight).sum().backward();
    (pipe_output * weight).sum().backward();
    torch::NoGradGuard no_grad;
    for (const auto& model : {plain->parameters(), pipe->parameters()}) {
      for (torch::Tensor p : model) p.sub_(p.grad(), 0.1);
    }
  }
  EXPECT_FALSE(close(plain->parameters()[0], pipe->parameters()[0]));
}

TEST(DeferredBatchNorm, WhatIsGatheredBelongsToNoGraph) {
  torch::Tensor running_mean = torch::zeros({3});
  torch::Tensor running_var = torch::ones({3});
  std::vector<internal::StatisticsLog> log(1);
  internal::WeakNodePtr graph{internal::NodePtr()};
  {
    const torch::Tensor x = torch::randn({8, 3}).requires_grad_() * 2;
    graph = internal::WeakNodePtr(x.grad_fn());
    const internal::TrackedStatistics tracked(/*stages=*/1);
    internal::InterceptionScope mode;
    internal::RunningStatisticsScope scope(internal::RunningStatistics::kDefer, tracked, &log[0],
                                           /*micro_batch=*/0);
    torch::batch_norm(x, {}, {}, running_mean, running_var, true, 0.1, 1e-5, false);
  }
  EXPECT_TRUE(graph.expired()) << "what was gathered holds the input's graph";
  internal::StatisticsLog::commit(log);
  EXPECT_FALSE(running_mean.requires_grad());
  EXPECT_FALSE(running_var.requires_grad());
  EXPECT_FALSE(torch::equal(running_mean, torch::zeros({3})));
}

}  // namespace
}  // namespace gpipe
