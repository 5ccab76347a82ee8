#include "gpipe/grad_scaler.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

GPipe pipeline() {
  testing::manual_seed(5);
  return GPipe(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)),
               testing::cpu_options({1, 1}).chunks(2));
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

// Sets all gradients to ones, and that of the last parameter to `last`.
void set_gradients(GPipe& pipe, double last) {
  for (at::Tensor& parameter : pipe->parameters()) {
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  pipe->parameters().back().mutable_grad().fill_(last);
}

// An optimizer that counts its steps.
struct Steps {
  int64_t made = 0;
  void step() { ++made; }
};

TEST(GradScaler, ChoosesTheFactorsOfLibTorchsKernel) {
  testing::manual_seed(3);
  for (const auto& [growth, backoff, interval] :
       {std::tuple(2.0, 0.5, 3), std::tuple(1.7, 0.3, 2), std::tuple(1e30, 0.9, 1)}) {
    GPipe pipe = pipeline();
    GradScaler scaler(pipe, GradScalerOptions()
                                .init_scale(1000)
                                .growth_factor(growth)
                                .backoff_factor(backoff)
                                .growth_interval(interval));
    at::Tensor scale = torch::full({1}, 1000.F);
    at::Tensor tracker = torch::zeros({1}, torch::kInt);
    Steps steps;
    for (int64_t k = 0; k < 60; ++k) {
      const bool finite = torch::rand({1}).item<double>() < 0.7;
      set_gradients(pipe, finite ? 1 : kInfinity);
      const int64_t before = steps.made;
      EXPECT_EQ(scaler.step(steps), finite);
      EXPECT_EQ(steps.made - before, finite ? 1 : 0);
      scaler.update();
      at::_amp_update_scale_(scale, tracker, torch::full({1}, finite ? 0.F : 1.F), growth, backoff,
                             interval);
      ASSERT_EQ(scaler.scale(), scale.item<float>()) << k;
      ASSERT_EQ(scaler.state().growth_steps, tracker.item<int>()) << k;
    }
  }
}

TEST(GradScaler, AStepWithAPowerOfTwoLeavesTheBitsOfOneWithout) {
  const at::Tensor input = torch::randn({5, 3});
  const at::Tensor target = torch::randn({5, 2});
  GPipe plain = pipeline();
  GPipe scaled = pipeline();
  const StepResult wanted = plain->step({input}, {target}, mean_square);
  GradScaler scaler(scaled);
  const StepResult got =
      scaled->step({input}, {target}, mean_square, StepOptions().loss_scale(scaler.scale()));
  EXPECT_EQ(got.loss, wanted.loss);
  EXPECT_EQ(got.losses, wanted.losses);
  const auto gradient = [](GPipe& pipe) { return pipe->parameters().front().grad(); };
  EXPECT_THAT(gradient(scaled), EqualsBitwise(gradient(plain) * 65536));
  EXPECT_TRUE(scaler.unscale_());
  for (size_t k = 0; k < plain->parameters().size(); ++k) {
    EXPECT_THAT(scaled->parameters()[k].grad(), EqualsBitwise(plain->parameters()[k].grad()));
  }
}

TEST(GradScaler, KeepsGradientsThatFloat16LosesOtherwise) {
  const at::Tensor input = torch::full({4, 3}, 1e-3, torch::kHalf);
  const at::Tensor target = torch::zeros({4, 2}, torch::kHalf);
  const auto tiny = [](const at::Tensor& output, const at::Tensor& to) {
    return (output - to).to(torch::kFloat).pow(2).mean() * 1e-5;
  };
  const auto gradient = [&](double scale) {
    GPipe pipe = pipeline();
    pipe->to(torch::kHalf);
    pipe->step({input}, {target}, tiny, StepOptions().loss_scale(scale));
    const at::Tensor found = pipe->parameters().front().grad();
    EXPECT_TRUE(found.isfinite().all().item<bool>());
    return found.abs().sum().item<double>();
  };
  EXPECT_EQ(gradient(1), 0);
  EXPECT_GT(gradient(65536), 0);
}

TEST(GradScaler, BacksOffWhereALossInFloat16CannotHoldTheFactor) {
  GPipe pipe = pipeline();
  pipe->to(torch::kHalf);
  GradScaler scaler(pipe, GradScalerOptions().init_scale(1 << 20));
  Steps steps;
  pipe->step({torch::ones({4, 3}, torch::kHalf)}, {torch::ones({4, 2}, torch::kHalf)}, mean_square,
             StepOptions().loss_scale(scaler.scale()));
  EXPECT_FALSE(scaler.step(steps));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 1 << 19);
}

TEST(GradScaler, GradientsAreDividedOnceBeforeTheyAreClipped) {
  GPipe pipe = pipeline();
  GradScaler scaler(pipe, GradScalerOptions().init_scale(4));
  set_gradients(pipe, 1);
  EXPECT_TRUE(scaler.unscale_());
  EXPECT_THAT([&] { scaler.unscale_(); }, ThrowsMessage<c10::ValueError>(HasSubstr("second time")));
  Steps steps;
  EXPECT_TRUE(scaler.step(steps));
  EXPECT_THAT(pipe->parameters().front().grad(), EqualsBitwise(torch::full({4, 3}, 0.25)));
  EXPECT_THAT([&] { scaler.step(steps); },
              ThrowsMessage<c10::ValueError>(HasSubstr("second time")));
  scaler.update();
  EXPECT_THAT([&] { scaler.update(); },
              ThrowsMessage<c10::ValueError>(HasSubstr("without a step")));
  EXPECT_EQ(steps.made, 1);
}

TEST(GradScaler, AnOptimizerThatThrowsLeavesTheFactorAndTheNextStepIsDivided) {
  struct Thrower {
    void step() { throw std::runtime_error("full"); }
  } thrower;
  GPipe pipe = pipeline();
  GradScaler scaler(pipe, GradScalerOptions().init_scale(4));
  set_gradients(pipe, 1);
  EXPECT_THROW(scaler.step(thrower), std::runtime_error);
  set_gradients(pipe, 1);
  Steps steps;
  EXPECT_TRUE(scaler.step(steps));
  EXPECT_THAT(pipe->parameters().front().grad(), EqualsBitwise(torch::full({4, 3}, 0.25)));
  EXPECT_EQ(scaler.scale(), 4);
}

// The optimizer also has a parameter of the loss function. step() divides and checks its gradient,
// too, also if unscale_() has divided the pipeline's gradients before.
TEST(GradScaler, DividesAndChecksWhatTheOptimizerHasBesideThePipeline) {
  for (const bool unscales_before : {false, true}) {
    GPipe pipe = pipeline();
    const at::Tensor own = torch::ones({2}).requires_grad_();
    std::vector<at::Tensor> parameters = pipe->parameters();
    parameters.push_back(own);
    torch::optim::SGD optimizer(parameters, /*lr=*/1);
    GradScaler scaler(pipe, GradScalerOptions().init_scale(4));
    set_gradients(pipe, 1);
    own.mutable_grad() = torch::ones({2});
    if (unscales_before) (void)scaler.unscale_();
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    EXPECT_THAT(own, EqualsBitwise(torch::full({2}, 0.75)));
    EXPECT_THAT(pipe->parameters().front().grad(), EqualsBitwise(torch::full({4, 3}, 0.25)));

    set_gradients(pipe, 1);
    own.mutable_grad() = torch::full({2}, kInfinity);
    if (unscales_before) (void)scaler.unscale_();
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_THAT(own, EqualsBitwise(torch::full({2}, 0.75)));
    EXPECT_EQ(scaler.scale(), 2);
  }
}

TEST(GradScaler, SaysThatNoFactorHelps) {
  GPipe pipe = pipeline();
  GradScaler scaler(pipe, GradScalerOptions().init_scale(1e-38));
  Steps steps;
  const auto train = [&] {
    for (int64_t k = 0; k < 10; ++k) {
      set_gradients(pipe, std::nan(""));
      scaler.step(steps);
      scaler.update();
    }
  };
  EXPECT_THAT(train, ThrowsMessage<c10::ValueError>(HasSubstr("StepOptions::check_finite")));
  EXPECT_EQ(steps.made, 0);
}

TEST(GradScaler, DoesNothingWhereItIsNotEnabled) {
  GPipe pipe = pipeline();
  GradScaler scaler(pipe, GradScalerOptions().enabled(false));
  set_gradients(pipe, kInfinity);
  Steps steps;
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.unscale_());
  EXPECT_TRUE(scaler.step(steps));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(steps.made, 1);
  // As in torch.amp.GradScaler, a disabled scaler does not check the order of calls.
  EXPECT_TRUE(scaler.unscale_());
  EXPECT_TRUE(scaler.step(steps));
  EXPECT_TRUE(scaler.step(steps));
  scaler.update();
  scaler.update();
  EXPECT_EQ(steps.made, 3);
  EXPECT_EQ(scaler.state().growth_steps, 0);
}

TEST(GradScaler, GoesOnFromItsState) {
  GPipe pipe = pipeline();
  GradScaler scaler(pipe, GradScalerOptions().growth_interval(3));
  Steps steps;
  const auto train = [&](GradScaler& by) {
    set_gradients(pipe, 1);
    by.step(steps);
    by.update();
  };
  train(scaler);
  train(scaler);
  GradScaler resumed(pipe, GradScalerOptions().growth_interval(3).init_scale(7));
  resumed.load(scaler.state());
  train(resumed);
  EXPECT_EQ(resumed.scale(), 2 * 65536);
  EXPECT_THROW(resumed.load({0, 0}), c10::ValueError);
  EXPECT_THROW(resumed.load({kInfinity, 0}), c10::ValueError);
  EXPECT_THROW(resumed.load({4, -1}), c10::ValueError);
  EXPECT_EQ(resumed.scale(), 2 * 65536);
}

TEST(GradScaler, RefusesOptionsThatAreOutOfBounds) {
  GPipe pipe = pipeline();
  for (const double wrong : {0.0, -1.0, kInfinity, std::nan(""), 1e300}) {
    EXPECT_THROW(GradScaler(pipe, GradScalerOptions().init_scale(wrong)), c10::ValueError);
    EXPECT_THROW(pipe->step({torch::ones({2, 3})}, {torch::ones({2, 2})}, mean_square,
                            StepOptions().loss_scale(wrong)),
                 c10::ValueError);
  }
  // The inverse of this factor is not a finite float32.
  EXPECT_THROW(GradScaler(pipe, GradScalerOptions().init_scale(1e-40)), c10::ValueError);
  EXPECT_THROW(GradScaler(pipe).load({1e-40, 0}), c10::ValueError);
  EXPECT_THROW(GradScaler(pipe, GradScalerOptions().growth_factor(1)), c10::ValueError);
  EXPECT_THROW(GradScaler(pipe, GradScalerOptions().backoff_factor(1)), c10::ValueError);
  EXPECT_THROW(GradScaler(pipe, GradScalerOptions().backoff_factor(0)), c10::ValueError);
  EXPECT_THROW(GradScaler(pipe, GradScalerOptions().growth_interval(0)), c10::ValueError);
  EXPECT_THROW(GradScaler(GPipe(nullptr)), c10::ValueError);
}

}  // namespace
}  // namespace gpipe
