// Tests warnings about options that were probably forgotten. They must say what to give.

#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/processes/connected.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/log_capture.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

nn::Sequential model(int64_t layers) {
  nn::Sequential result;
  for (int64_t k = 0; k < layers; ++k) result->push_back(nn::Linear(4, 4));
  return result;
}

void step(GPipe& pipe, const std::string& schedule) {
  const auto mean = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).mean(); };
  pipe->step({torch::rand({4, 4})}, {}, mean, StepOptions().schedule(schedule_by_name(schedule)));
}

TEST(ForgottenOptions, APlacementIsNamedOnce) {
  GPipe placed(model(2), testing::cpu_options({1, 1}).chunks(2).placement(Placement::v_shape(1)));
  GPipe pipe(model(2), testing::cpu_options({1, 1}).chunks(2));
  const testing::LogCapture log;
  step(placed, "zb-v");
  step(pipe, "1f1b");
  EXPECT_THAT(log.warnings(), IsEmpty());
  for (int k = 0; k < 2; ++k) {
    step(pipe, "zb-v");
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("runs 2 stages on one worker"),
                                                  HasSubstr("Placement::of({0, 0})"))));
  }
}

TEST(ForgottenOptions, AWorldIsNamedOnce) {
  const testing::LogCapture log;
  { GPipe pipe(model(2), testing::cpu_options({1, 1})); }
  EXPECT_THAT(log.warnings(), IsEmpty());
  const internal::Connected connected;
  for (int k = 0; k < 2; ++k) {
    GPipe pipe(model(2), testing::cpu_options({1, 1}));
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("without GPipeOptions::world"),
                                                  HasSubstr("give .world(world)"))));
  }
}

// No layer registers a module that a function captures, so one warning names the module's
// parameter.
TEST(ForgottenOptions, ACapturedModuleIsNamedOnce) {
  nn::Linear captured(4, 4);
  const auto make = [&] {
    nn::Sequential layers = model(2);
    layers->push_back(nn::Functional(
        [captured](const torch::Tensor& x) mutable { return captured->forward(x).tanh(); }));
    layers->push_back(nn::Linear(4, 4));
    return layers;
  };
  const auto text = AllOf(HasSubstr("layer 2 ('2') trains a tensor of shape [4"),
                          HasSubstr("no layer has registered"), HasSubstr("register_module"));
  for (const auto& balance : {std::vector<int64_t>{4}, {2, 2}, {3, 1}}) {
    for (const int64_t groups : {0, 2}) {
      GPipe pipe(make(), testing::cpu_options(balance).chunks(2).groups(groups));
      const testing::LogCapture log;
      for (int k = 0; k < 2; ++k) {
        step(pipe, "1f1b");
        EXPECT_THAT(log.warnings(), ElementsAre(text)) << balance.size() << " " << groups;
      }
    }
    GPipe pipe(make(), testing::cpu_options(balance).chunks(2));
    const testing::LogCapture log;
    for (int k = 0; k < 2; ++k) {
      pipe->forward(torch::rand({4, 4})).sum().backward();
      EXPECT_THAT(log.warnings(), ElementsAre(text)) << balance.size();
    }
  }
}

// Parameters of the loss function and inputs with a gradient belong to the caller, and a weight
// that another layer has registered is known. So no warning names them.
TEST(ForgottenOptions, WhatIsKnownIsNotNamed) {
  nn::Sequential tied = model(2);
  const torch::Tensor weight = tied->ptr<nn::LinearImpl>(0)->weight;
  tied->push_back(nn::Functional(
      [weight](const torch::Tensor& x) { return at::linear(x, weight, at::Tensor()); }));
  GPipe pipe(tied, testing::cpu_options({1, 2}).chunks(2));
  const torch::Tensor scale = torch::ones({}, at::TensorOptions().requires_grad(true));
  const torch::Tensor input = torch::rand({4, 4}).requires_grad_();
  const testing::LogCapture log;
  pipe->step({input}, {}, [scale](const Tensors& outputs, const Tensors&) {
    return (outputs.at(0) * scale).mean();
  });
  EXPECT_TRUE(scale.grad().defined());
  EXPECT_TRUE(input.grad().defined());
  EXPECT_THAT(log.warnings(), IsEmpty());
}

// The weight halves of backwards come after the loss's backward. They must know which parameters
// the loss has used, so that no warning names these.
TEST(ForgottenOptions, WhatTheLossUsesIsNotNamedUnderAnySchedule) {
  const torch::Tensor scale = torch::ones({4}, at::TensorOptions().requires_grad(true));
  for (const char* schedule : {"1f1b", "zb-h1", "zb-h2", "fill-drain"}) {
    GPipe pipe(model(2), testing::cpu_options({1, 1}).chunks(2));
    const testing::LogCapture log;
    pipe->step(
        {torch::rand({4, 4})}, {},
        [scale](const Tensors& outputs, const Tensors&) { return (outputs.at(0) * scale).mean(); },
        StepOptions().schedule(schedule_by_name(schedule)));
    EXPECT_TRUE(scale.grad().defined());
    EXPECT_THAT(log.warnings(), IsEmpty()) << schedule;
  }
}

// A layer that registers a module in its first forward, as lazy modules do in Python.
struct RegistersLaterImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    if (!linear) linear = register_module("linear", nn::Linear(4, 4));
    return linear->forward(x);
  }
  nn::Linear linear{nullptr};
};

TEST(ForgottenOptions, WhatIsRegisteredInTheFirstForwardIsNotNamed) {
  nn::Sequential layers = model(1);
  layers->push_back(std::make_shared<RegistersLaterImpl>());
  GPipe pipe(layers, testing::cpu_options({1, 1}).chunks(2));
  const testing::LogCapture log;
  step(pipe, "1f1b");
  EXPECT_EQ(pipe->parameters().size(), 4U);
  EXPECT_THAT(log.warnings(), IsEmpty());
}

}  // namespace
}  // namespace gpipe
