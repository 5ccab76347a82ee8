// Tests GPipe::evaluate. It must run forward and loss only, be exact, and keep nothing. Also tests
// which calls it accepts.

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/live_memory.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using testing::cpu_options;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::layer;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kClasses = 5;

nn::Sequential classifier() {
  testing::manual_seed(3);
  return nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::ReLU(),
                        nn::Linear(8, kClasses));
}

Tensor cross_entropy(Tensor output, Tensor target) { return F::cross_entropy(output, target); }

struct Batch {
  Tensor input = torch::randn({8, 6});
  Tensor target = torch::randint(kClasses, {8});
};

// The losses of the micro-batches (of three rows or fewer), and their weighted mean.
struct Plain {
  std::vector<double> losses;
  double loss = 0;
};

Plain plain_losses(nn::Sequential model, const Batch& batch) {
  const torch::NoGradGuard no_grad;
  Plain plain;
  for (const auto& [start, rows] : {std::pair<int64_t, int64_t>{0, 3}, {3, 3}, {6, 2}}) {
    const Tensor output = model->forward(batch.input.narrow(0, start, rows));
    plain.losses.push_back(
        cross_entropy(output, batch.target.narrow(0, start, rows)).item<double>());
    plain.loss += static_cast<double>(rows) / 8 * plain.losses.back();
  }
  return plain;
}

TEST(Evaluate, IsBitwiseThePlainModelForEveryBalanceModeAndSchedule) {
  at::set_num_threads(1);
  const Batch batch;
  nn::Sequential model = classifier();
  model->eval();
  const Plain want = plain_losses(model, batch);
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{5}, {2, 3}, {1, 1, 2, 1}}) {
    for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      for (const ScheduleGenerator& schedule :
           {ScheduleGenerator(nullptr), ScheduleGenerator(Schedule::gpipe),
            ScheduleGenerator(sequential)}) {
        GPipe pipe(model, cpu_options(balance).chunks(3).checkpoint(mode));
        const StepResult have = pipe->evaluate({batch.input}, {batch.target}, cross_entropy,
                                               StepOptions().schedule(schedule));
        EXPECT_EQ(have.losses, want.losses);
        EXPECT_EQ(have.loss, want.loss);
        EXPECT_THAT(have.outputs, IsEmpty());
      }
    }
  }
}

// evaluate() and step() must give the same numbers, so that training and validation can be
// compared.
TEST(Evaluate, GivesTheLossOfAStep) {
  const Batch batch;
  const auto run = [&](auto call) {
    GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
    testing::manual_seed(8);  // dropout draws, because the pipeline is in training mode
    return call(pipe);
  };
  const StepOptions options = StepOptions().keep_outputs(true).weight(
      [](const Tensors& targets) { return targets.at(0).ne(0).sum().item<double>() + 1; });
  const StepResult step =
      run([&](GPipe& p) { return p->step({batch.input}, {batch.target}, cross_entropy, options); });
  const StepResult evaluated = run(
      [&](GPipe& p) { return p->evaluate({batch.input}, {batch.target}, cross_entropy, options); });
  EXPECT_EQ(step.loss, evaluated.loss);
  EXPECT_EQ(step.losses, evaluated.losses);
  EXPECT_EQ(step.losses.size(), 3U);
  ASSERT_EQ(evaluated.outputs.size(), 1U);
  EXPECT_THAT(evaluated.outputs[0], EqualsBitwise(step.outputs[0]));
  EXPECT_FALSE(evaluated.outputs[0].requires_grad());
}

TEST(Evaluate, SumsWhereTheLossIsASum) {
  const Batch batch;
  GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
  pipe->eval();
  const StepResult have = pipe->evaluate(
      {batch.input}, {batch.target},
      [](const Tensor& output, const Tensor& target) {
        return F::cross_entropy(output, target,
                                F::CrossEntropyFuncOptions().reduction(torch::kSum));
      },
      StepOptions().reduction(LossReduction::kSum));
  EXPECT_EQ(have.loss, have.losses[0] + have.losses[1] + have.losses[2]);
}

TEST(Evaluate, RunsForwardsOnlyAndLeavesNoGradient) {
  const Batch batch;
  GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
  std::mutex mutex;
  int64_t forwards = 0, others = 0;
  const Tensor input = batch.input.clone().requires_grad_();
  pipe->evaluate({input}, {batch.target}, cross_entropy,
                 StepOptions().on_event([&](const Event& event) {
                   const std::lock_guard<std::mutex> lock(mutex);
                   if (event.edge != Event::Edge::kEnd) return;
                   ++(event.action.kind == ActionKind::kForward ? forwards : others);
                 }));
  EXPECT_EQ(forwards, 2 * 3);
  EXPECT_EQ(others, 0);
  EXPECT_FALSE(input.grad().defined());
  for (const Tensor& parameter : pipe->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Evaluate, GradModeIsOffInLayersAndLossAndAsBeforeAfterwards) {
  std::mutex mutex;
  std::vector<bool> modes;
  const auto note = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    modes.push_back(torch::GradMode::is_enabled());
  };
  nn::Sequential model(layer<Tensor, Tensor>([&](Tensor x) {
                         note();
                         return x * 2;
                       }),
                       nn::Linear(6, 1));
  GPipe pipe(model, cpu_options({1, 1}).chunks(2));
  const auto loss = [&](const Tensor& output, const Tensor&) {
    note();
    return output.mean();
  };
  pipe->evaluate({torch::randn({4, 6})}, {torch::zeros({4})}, loss);
  EXPECT_THAT(modes, ElementsAre(false, false, false, false));
  EXPECT_TRUE(torch::GradMode::is_enabled());
  // evaluate() also works if step() would be refused, or would have nothing to train.
  const torch::NoGradGuard no_grad;
  pipe->evaluate({torch::randn({4, 6})}, {torch::zeros({4})}, loss);
  const c10::InferenceMode inference;
  pipe->evaluate({torch::randn({4, 6})}, {torch::zeros({4})}, loss);
  for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  pipe->evaluate({torch::randn({4, 6})}, {torch::zeros({4})}, loss);
}

// A step would keep the outputs of all sixteen layers. An evaluation must have only one activation
// in each stage, and the values that wait between two stages.
TEST(Evaluate, KeepsNothing) {
  at::set_num_threads(1);
  testing::count_live_memory();
  nn::Sequential model;
  for (int64_t k = 0; k < 16; ++k) model->push_back(nn::Tanh());
  GPipe pipe(model, cpu_options({16}).chunks(8));
  const Tensor input = torch::randn({8 * 64, 256});
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  pipe->evaluate({input}, {}, loss);
  const int64_t before = testing::live_bytes();
  testing::reset_peak_bytes();
  pipe->evaluate({input}, {}, loss);
  constexpr int64_t kActivation = 64 * 256 * 4;
  EXPECT_LE(testing::peak_bytes() - before, 3 * kActivation);
  EXPECT_EQ(testing::live_bytes(), before);
}

TEST(Evaluate, RefusesWhatStepRefuses) {
  const Batch batch;
  GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
  EXPECT_THAT([&] { pipe->evaluate({batch.input}, {batch.target}, nullptr); },
              ThrowsMessage<c10::ValueError>(HasSubstr("evaluate was given an empty loss")));
  EXPECT_THAT([&] { pipe->evaluate({}, {batch.target}, cross_entropy); },
              ThrowsMessage<c10::ValueError>(HasSubstr("evaluate was given no input")));
  EXPECT_THAT([&] { pipe->evaluate({batch.input}, {batch.target.narrow(0, 0, 3)}, cross_entropy); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the targets have 3 rows")));
  EXPECT_THAT(
      [&] {
        pipe->evaluate({batch.input}, {batch.target}, cross_entropy,
                       StepOptions().schedule(Schedule::one_f_one_b(2, 5)));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("the schedule is for 5 micro-batches")));
  EXPECT_THAT(
      [&] {
        pipe->evaluate({batch.input}, {batch.target},
                       [](const Tensor& output, const Tensor&) { return output; });
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("one number per micro-batch")));
}

TEST(Evaluate, AnErrorNamesItsPlaceAndThePipelineGoesOn) {
  bool fail = true;
  nn::Sequential model(nn::Linear(6, 6), layer<Tensor, Tensor>([&](Tensor x) {
                         if (fail) throw std::runtime_error("broken");
                         return x;
                       }));
  GPipe pipe(model, cpu_options({1, 1}).chunks(2));
  const auto run = [&] {
    return pipe->evaluate({torch::ones({4, 6})}, {torch::ones({4, 6})}, nn::MSELoss());
  };
  EXPECT_THAT(run, ThrowsMessage<std::runtime_error>(HasSubstr("forward of stage 1")));
  ASSERT_TRUE(pipe->last_failure());
  EXPECT_EQ(pipe->last_failure()->stage, 1);
  EXPECT_FALSE(pipe->last_failure()->backward);
  fail = false;
  EXPECT_EQ(run().losses.size(), 2U);
}

TEST(Evaluate, FindsTheFirstValueThatIsNotFinite) {
  nn::Sequential model(nn::Linear(2, 2), layer<Tensor, Tensor>([](Tensor x) { return x / 0; }));
  GPipe pipe(model, cpu_options({1, 1}).chunks(2));
  EXPECT_THAT(
      [&] {
        pipe->evaluate({torch::ones({2, 2})}, {torch::ones({2, 2})}, nn::MSELoss(),
                       StepOptions().check_finite(true));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("layer 1")));
}

// A validation does not read gradients, so it does not matter that a gradient is NaN.
TEST(Evaluate, LooksAtNoGradients) {
  nn::Sequential model(nn::Linear(2, 2));
  model->parameters()[0].mutable_grad() = torch::full({2, 2}, std::nanf(""));
  GPipe pipe(model, cpu_options({1}));
  pipe->evaluate({torch::ones({2, 2})}, {torch::ones({2, 2})}, nn::MSELoss(),
                 StepOptions().check_finite(true));
  EXPECT_THAT(
      [&] {
        pipe->step({torch::ones({2, 2})}, {torch::ones({2, 2})}, nn::MSELoss(),
                   StepOptions().check_finite(true));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("the gradient (.grad)")));
}

TEST(Evaluate, TakesALossThatTheFunctionGoesOnToChange) {
  Tensor sum = torch::zeros({});
  GPipe pipe(nn::Sequential(nn::Linear(2, 1)), cpu_options({1}).chunks(2));
  const StepResult result = pipe->evaluate({torch::ones({2, 2})}, {torch::ones({2, 1})},
                                           [&](const Tensor& output, const Tensor& target) {
                                             return sum += target.mean() + 0 * output.sum();
                                           });
  EXPECT_THAT(result.losses, ElementsAre(1, 2));
}

// Running statistics change as in a forward: once per mini-batch if they are deferred.
TEST(Evaluate, InTrainingModeUpdatesStatisticsAsForwardDoes) {
  const Batch batch;
  const auto buffers = [&](auto call) {
    GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3).deferred_batch_norm(true));
    testing::manual_seed(8);
    call(pipe);
    return pipe->buffers();
  };
  const auto want = buffers([&](GPipe& pipe) {
    const torch::NoGradGuard no_grad;
    pipe->forward(batch.input);
  });
  const auto have =
      buffers([&](GPipe& pipe) { pipe->evaluate({batch.input}, {batch.target}, cross_entropy); });
  ASSERT_EQ(have.size(), want.size());
  for (size_t k = 0; k < have.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k]));
}

TEST(StepInEvaluationMode, IsWarnedOfOnce) {
  const Batch batch;
  GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
  const testing::LogCapture log;
  pipe->step({batch.input}, {batch.target}, cross_entropy);
  EXPECT_THAT(log.warnings(), IsEmpty());
  pipe->eval();
  pipe->evaluate({batch.input}, {batch.target}, cross_entropy);
  EXPECT_THAT(log.warnings(), IsEmpty());
  for (int k = 0; k < 2; ++k) pipe->step({batch.input}, {batch.target}, cross_entropy);
  EXPECT_THAT(log.warnings(), ElementsAre(HasSubstr("step() was called in evaluation mode")));
}

TEST(LossFn, OfTensorsIsThatOfLists) {
  const Batch batch;
  const auto of_lists = [](const Tensors& outputs, const Tensors& targets) {
    return F::cross_entropy(outputs.at(0), targets.at(0));
  };
  const std::function<Tensor(Tensor, Tensor)> stored = cross_entropy;
  nn::CrossEntropyLoss module;
  for (const LossFn& loss : {LossFn(of_lists), LossFn(cross_entropy), LossFn(&cross_entropy),
                             LossFn(stored), LossFn(module)}) {
    GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
    testing::manual_seed(8);
    const StepResult have = pipe->step({batch.input}, {batch.target}, loss);
    GPipe other(classifier(), cpu_options({2, 3}).chunks(3));
    testing::manual_seed(8);
    const StepResult want = other->step({batch.input}, {batch.target}, of_lists);
    EXPECT_EQ(have.loss, want.loss);
    for (const auto& parameter : pipe->named_parameters()) {
      EXPECT_THAT(parameter.value().grad(),
                  EqualsBitwise(other->named_parameters()[parameter.key()].grad()));
    }
  }
}

TEST(LossFn, OfTensorsNeedsOneOfEach) {
  const Batch batch;
  GPipe pipe(classifier(), cpu_options({2, 3}).chunks(3));
  EXPECT_THAT(
      [&] {
        pipe->step({batch.input}, {batch.target, batch.target}, cross_entropy);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("there are 1 outputs and 2 targets; write one")));
  EXPECT_THAT([&] { pipe->step({batch.input}, {}, cross_entropy); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the call was given no target")));
}

TEST(LossFn, IsEmptyWhereItsFunctionIs) {
  const std::function<Tensor(Tensor, Tensor)> of_tensors;
  const std::function<Tensor(const Tensors&, const Tensors&)> of_lists;
  Tensor (*pointer)(Tensor, Tensor) = nullptr;
  for (const LossFn& loss :
       {LossFn(), LossFn(nullptr), LossFn(of_tensors), LossFn(of_lists), LossFn(pointer)}) {
    EXPECT_TRUE(loss == nullptr);
    EXPECT_FALSE(static_cast<bool>(loss));
  }
  EXPECT_TRUE(LossFn(cross_entropy) != nullptr);
}

TEST(Holder, IsCalledAsOtherModulesAre) {
  at::set_num_threads(1);
  const Tensor input = torch::randn({4, 6});
  nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 2));
  GPipe pipe(model, cpu_options({1, 2}));
  EXPECT_THAT(pipe(input), EqualsBitwise(model->forward(input)));
  const Tensors outputs = pipe(Tensors{input});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_THAT(outputs[0], EqualsBitwise(model->forward(input)));
}

TEST(Holder, IsMadeOfABalance) {
  nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 2));
  GPipe pipe(model, {1, 2});
  EXPECT_THAT(pipe->balance(), ElementsAre(1, 2));
  EXPECT_EQ(pipe->chunks(), 1);
  const std::vector<int64_t> balance = {3};
  EXPECT_THAT(GPipe(model, balance)->balance(), ElementsAre(3));
  EXPECT_THAT(GPipe(model, {3})->balance(), ElementsAre(3));
  GPipe empty = nullptr;
  EXPECT_TRUE(empty.is_empty());
  empty = pipe;
  EXPECT_EQ(empty.get(), pipe.get());
}

}  // namespace
}  // namespace gpipe
