// Tests StepOptions::check_finite: it must find the first value that is NaN or infinite, wherever
// it arises. If there is none, nothing may change.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/skippable.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ::testing::AllOf;
using testing::cpu_options;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using ::testing::ThrowsMessage;
using torch::Tensor;

const float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

Tensor mean(const Tensors& outputs, const Tensors&) { return outputs.at(0).mean(); }

auto function(std::function<Tensor(Tensor)> f) { return layer<Tensor, Tensor>(std::move(f)); }

// Returns eight rows of ones, except that row 5, in the third of four micro-batches, is full of
// `value`.
Tensor with_a_row_of(float value) {
  Tensor x = torch::ones({8, 4});
  x[5].fill_(value);
  return x;
}

StepOptions checked() { return StepOptions().check_finite(true); }

template <typename Texts>
void expect_found(GPipe& pipe, const Tensor& x, const Texts& texts,
                  const StepOptions& options = checked()) {
  EXPECT_THAT([&] { pipe->step({x}, {}, mean, options); }, ThrowsMessage<c10::ValueError>(texts));
}

TEST(CheckFinite, NamesTheLayerTheMicroBatchAndTheForward) {
  for (const Checkpoint mode : kModes) {
    for (const bool one_f_one_b : {true, false}) {
      GPipe pipe(nn::Sequential(function([](Tensor x) { return x * 1; }),
                                function([](Tensor x) { return x.sqrt(); }), nn::Linear(4, 2)),
                 cpu_options({1, 2}).chunks(4).checkpoint(mode));
      StepOptions options = checked();
      if (!one_f_one_b) options.schedule(&Schedule::gpipe);
      expect_found(pipe, with_a_row_of(-1),
                   AllOf(HasSubstr("4 of 8 values are nan"),
                         HasSubstr("in the forward of stage 1, micro-batch 2, layer 1 ('1'), a ")),
                   options);
      const std::optional<Failure> failure = pipe->last_failure();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->stage, 1);
      EXPECT_EQ(failure->micro_batch, 2);
      EXPECT_FALSE(failure->backward);
      EXPECT_EQ(failure->layer, "layer 1 ('1')");
      EXPECT_THAT(failure->layer_type, HasSubstr("FunctionImpl"));
      // With the option off no value is checked, so the loss is NaN.
      EXPECT_TRUE(std::isnan(pipe->step({with_a_row_of(-1)}, {}, mean).loss));
    }
  }
}

TEST(CheckFinite, NamesTheLayerTheMicroBatchAndTheBackward) {
  // The square root of 0 is finite, but its derivative is not. So only the backward is reported.
  for (const Checkpoint mode : kModes) {
    for (const bool split : {false, true}) {
      GPipe pipe(nn::Sequential(function([](Tensor x) { return x * 1; }),
                                function([](Tensor x) { return x.sqrt(); }), nn::Linear(4, 2)),
                 cpu_options({1, 2}).chunks(2).checkpoint(mode));
      StepOptions options = checked();
      if (split) {
        options.schedule(Schedule::from_text(
            "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 I0.0 I0.1 W0.0 W0.1\n"
            "worker 1: F1.0 F1.1 I1.0 I1.1 W1.0 W1.1\n"));
      }
      expect_found(pipe, with_a_row_of(0).requires_grad_(),
                   AllOf(HasSubstr("4 of 16 values are infinite"), HasSubstr("SqrtBackward"),
                         HasSubstr("in the backward of stage 1, micro-batch 1, layer 1 ('1')")),
                   options);
      EXPECT_TRUE(pipe->last_failure()->backward);
    }
  }
}

struct NanInBackward : torch::autograd::Function<NanInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * kNan};
  }
};

TEST(CheckFinite, NamesTheLayerOfACustomFunctionAndOfAHook) {
  GPipe custom(
      nn::Sequential(nn::Linear(4, 4), function([](Tensor x) { return NanInBackward::apply(x); })),
      cpu_options({1, 1}));
  expect_found(custom, torch::ones({2, 4}),
               AllOf(HasSubstr("nan"), HasSubstr("backward of stage 1, micro-batch 0, layer 1")));
  GPipe hook(nn::Sequential(nn::Linear(4, 4), function([](Tensor x) {
                              Tensor y = x * 2;
                              y.register_hook([](const Tensor& g) { return g * kInfinity; });
                              return y * 3;
                            })),
             cpu_options({1, 1}));
  expect_found(
      hook, torch::ones({2, 4}),
      AllOf(HasSubstr("infinite"), HasSubstr("backward of stage 1, micro-batch 0, layer 1")));
}

TEST(CheckFinite, LooksAtInputsParametersAndTheirGradients) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)), cpu_options({1, 1}).chunks(4));
  expect_found(pipe, with_a_row_of(kInfinity),
               AllOf(HasSubstr("infinite, for the first time, in an input"),
                     HasSubstr("stage 0, micro-batch 2")));
  pipe->zero_grad();
  const Tensor weight = pipe->named_parameters()["1.weight"];
  weight.mutable_grad() = torch::full_like(weight, kNan);
  expect_found(pipe, with_a_row_of(2),
               AllOf(HasSubstr("8 of 8 values are nan"),
                     HasSubstr("the gradient (.grad) of '1.weight' before the step")));
  pipe->zero_grad();
  weight.data().index_put_({1, 2}, kNan);
  expect_found(pipe, with_a_row_of(2),
               AllOf(HasSubstr("1 of 8 values is nan"),
                     HasSubstr("the parameter '1.weight' before the step")));
}

TEST(CheckFinite, FindsAnOverflowOfTheSumOfGradients) {
  GPipe pipe(nn::Sequential(nn::Linear(nn::LinearOptions(1, 1).bias(false))),
             cpu_options({1}).chunks(2));
  pipe->parameters()[0].data().fill_(1e-3);
  EXPECT_THAT(
      [&] {
        pipe->step({torch::full({2, 1}, 2e38)}, {}, mean, checked().reduction(LossReduction::kSum));
      },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("the gradient (.grad) of '0.weight' after the step, although no term is")));
}

struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"root"}, {}) {}
  Tensor forward(Tensor x) {
    stash("root", x.sqrt());
    return x;
  }
};

TEST(CheckFinite, NamesTheLayerThatStashes) {
  for (const auto& balance : {std::vector<int64_t>{4}, {2, 1, 1}}) {
    nn::Sequential model(nn::Linear(4, 4), std::make_shared<StashImpl>(), nn::Linear(4, 4),
                         skip::testing::pop_layer({"root"}));
    model->children()[0]->parameters()[0].data().fill_(1);
    GPipe pipe(model, cpu_options(balance).chunks(4));
    expect_found(pipe, with_a_row_of(-1),
                 AllOf(HasSubstr("the skip 'root'"), HasSubstr("micro-batch 2, layer 1 ('1')")));
  }
}

TEST(CheckFinite, AMeanOverNothingIsFoundUnlessItHasNoWeight) {
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return F::cross_entropy(outputs.at(0), targets.at(0),
                            F::CrossEntropyFuncOptions().ignore_index(-100));
  };
  const Tensor target = torch::tensor({0, 1, 0, 1, -100, -100, 1, 0});
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 2)), cpu_options({1, 1}).chunks(4));
  EXPECT_THAT(
      [&] {
        pipe->step({torch::ones({8, 4})}, {target}, loss, checked());
      },
      ThrowsMessage<c10::ValueError>(
          AllOf(HasSubstr("the loss"), HasSubstr("StepOptions::weight"),
                HasSubstr("in the forward of stage 1, micro-batch 2, the loss function"))));
  EXPECT_EQ(pipe->last_failure()->layer_type, "");
  const auto weight = [](const Tensors& targets) {
    return targets.at(0).ne(-100).sum().item<double>();
  };
  EXPECT_FALSE(
      std::isnan(pipe->step({torch::ones({8, 4})}, {target}, loss, checked().weight(weight)).loss));
}

TEST(CheckFinite, ChangesNothingWhereAllIsFinite) {
  for (const Checkpoint mode : kModes) {
    std::vector<Tensors> results;
    for (const bool check : {false, true}) {
      testing::manual_seed(3);
      GPipe pipe(nn::Sequential(nn::Linear(4, 4),
                                function([](Tensor x) { return at::dropout(x, 0.5, true).tanh(); }),
                                nn::Linear(4, 2)),
                 cpu_options({1, 2}).chunks(4).checkpoint(mode));
      const Tensor x = torch::rand({8, 4}).requires_grad_();
      const StepResult step =
          pipe->step({x}, {}, mean, StepOptions().check_finite(check).keep_outputs(true));
      Tensors result = {step.outputs.at(0), x.grad(), torch::tensor(step.loss, torch::kDouble)};
      for (const Tensor& parameter : pipe->parameters()) result.push_back(parameter.grad());
      results.push_back(std::move(result));
    }
    EXPECT_THAT(results[1], EqualsBitwise(results[0]));
  }
}

TEST(CheckFinite, IsRefusedWithGraphs) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4)), cpu_options({1}).graphs(true));
  expect_found(pipe, torch::ones({2, 4}),
               AllOf(HasSubstr("GPipeOptions::graphs"), HasSubstr("without graphs")));
}

}  // namespace
}  // namespace gpipe
