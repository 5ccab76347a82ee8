// Tests of the comparison itself. A difference that is planted in the pipeline's side must be found
// and named. A failing program that is made small must still fail in the same way.

#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cfenv>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/programs/compare.h"
#include "gpipe/testing/programs/program.h"
#include "gpipe/testing/programs/reduce.h"

namespace gpipe::testing::programs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using at::Tensor;

constexpr int64_t kWidth = 6;

// Scales each column, and counts its calls in a buffer.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(std::shared_ptr<std::atomic<int64_t>> counter) : counter(std::move(counter)) {
    weight = register_parameter("weight", at::linspace(0.3, 1.7, kWidth));
    calls = register_buffer("calls", at::zeros({1}));
  }

  Tensors forward(Tensor x) {
    if (before) before(*this, x);
    calls += 1;
    Tensors result;
    result.push_back(x * weight);
    result.push_back(result[0].sin());
    if (after) after(*this, result);
    return result;
  }

  std::function<void(ScaleImpl&, Tensor& x)> before;
  std::function<void(ScaleImpl&, Tensors& result)> after;
  Tensor weight;
  Tensor calls;
  std::shared_ptr<std::atomic<int64_t>> counter;
};

using Fault = std::function<void(ScaleImpl&)>;

// A ScaleImpl that has `fault` in the pipeline, and none in the plain model.
Layer layer_with(Fault fault) {
  Layer layer;
  layer.text = "Scale()";
  // A run makes the plain model first and keeps it until its end. So the fault goes into each
  // module that is made while the first one lives.
  auto plain = std::make_shared<std::weak_ptr<torch::nn::Module>>();
  layer.make = [fault = std::move(fault), plain](Workshop& workshop) {
    auto& counter = workshop.counters[0];
    counter = std::make_shared<std::atomic<int64_t>>(0);
    auto module = std::make_shared<ScaleImpl>(counter);
    if (plain->expired()) {
      *plain = module;
    } else if (fault) {
      fault(*module);
    }
    return torch::nn::AnyModule(module);
  };
  return layer;
}

Layer linear() {
  Layer layer;
  layer.text = "Linear(6, 6)";
  layer.make = [](Workshop&) {
    return torch::nn::AnyModule(std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth));
  };
  return layer;
}

// A program with two stages. The layer with the fault is in the last stage.
Program program_with(Fault fault, Entry entry = Entry::kStep) {
  Program program;
  program.seed = 7;
  program.layers = {linear(), layer_with(std::move(fault))};
  program.inputs = {Input{{kWidth}, false, true}};
  program.balance = {1, 1};
  program.checkpoints = {Checkpoint::kNever, Checkpoint::kNever};
  program.chunks = 4;
  program.rows = 8;
  program.entry = entry;
  return program;
}

void expect_found(const Program& program, const std::string& category) {
  const Outcome outcome = run(program);
  EXPECT_EQ(outcome.kind, Outcome::kDifferent) << outcome.what;
  EXPECT_EQ(outcome.category, category);
  EXPECT_THAT(outcome.what, HasSubstr("call 0, " + category.substr(0, category.find(','))));
}

const Entry kEntries[] = {Entry::kForward,   Entry::kStep,   Entry::kStepGPipe,
                          Entry::kStepTable, Entry::kNoGrad, Entry::kInference};

TEST(Judge, APipelineWithoutAFaultIsEqual) {
  for (const Entry entry : kEntries) {
    Program program = program_with(nullptr, entry);
    program.optimizer = Optimizer::kAdam;
    program.calls = 3;
    const Outcome outcome = run(program);
    EXPECT_EQ(outcome.kind, Outcome::kEqual) << outcome.what;
    EXPECT_FALSE(outcome.failed());
  }
}

TEST(Judge, FindsAValue) {
  for (const Entry entry : kEntries) {
    expect_found(program_with(
                     [](ScaleImpl& scale) {
                       scale.after = [](ScaleImpl&, Tensors& result) { result[0] = result[0] + 1; };
                     },
                     entry),
                 "output");
  }
}

// One bit of one value in one micro-batch differs, and the loss hardly depends on it. The
// difference must be found in the output.
TEST(Judge, FindsOneBit) {
  for (const Entry entry : kEntries) {
    expect_found(program_with(
                     [](ScaleImpl& scale) {
                       scale.after = [](ScaleImpl& layer, Tensors& result) {
                         if (layer.calls.item<float>() != 3) return;
                         auto* bits = static_cast<uint32_t*>(result[1].mutable_data_ptr());
                         bits[result[1].numel() - 1] ^= 1;
                       };
                     },
                     entry),
                 "output");
  }
}

TEST(Judge, FindsAnOutputTooMuchAndOneThatHasNoGradient) {
  expect_found(program_with([](ScaleImpl& scale) {
                 scale.after = [](ScaleImpl&, Tensors& result) { result.push_back(result[0]); };
               }),
               "number of outputs");
  expect_found(program_with(
                   [](ScaleImpl& scale) {
                     scale.after = [](ScaleImpl&, Tensors& result) {
                       result[1] = result[1].detach();
                     };
                   },
                   Entry::kForward),
               "requires_grad of output");
}

// Changes the values of `tensor` without increasing its version. The returned function restores
// them.
std::function<void()> spoil(const Tensor& tensor) {
  const Tensor memory = tensor.variable_data();
  const Tensor was = memory.clone();
  memory.add_(1);
  return [memory, was] { memory.copy_(was); };
}

// The loss is computed from a changed output, and the caller gets the right output after the
// backward. So only the loss differs.
TEST(Judge, FindsALoss) {
  for (const Entry entry : {Entry::kStep, Entry::kStepGPipe, Entry::kStepTable}) {
    expect_found(program_with(
                     [](ScaleImpl& scale) {
                       scale.after = [](ScaleImpl&, Tensors& result) {
                         const auto restore = spoil(result[0]);
                         result[0].register_hook([restore](const Tensor&) { restore(); });
                       };
                     },
                     entry),
                 "loss");
  }
}

// The output of the first micro-batch is changed after the loss has been computed from it and
// before the backward uses it. So only the target's gradient differs.
TEST(Judge, FindsATargetsGradient) {
  Program program = program_with(
      [](ScaleImpl& scale) {
        auto first = std::make_shared<Tensor>();
        auto restore = std::make_shared<std::function<void()>>();
        scale.after = [first, restore](ScaleImpl& layer, Tensors& result) {
          const auto call = layer.calls.item<float>();
          if (call == 1) {
            *first = result[0].detach();
            // The hook restores the values before the layer's own nodes need them.
            result[1].register_hook([restore](const Tensor&) { (*restore)(); });
          } else if (call == 2) {
            *restore = spoil(*first);
          }
        };
      },
      Entry::kStepGPipe);
  program.loss = Loss::kProduct;
  program.target_requires_grad = true;
  expect_found(program, "target gradient");
}

TEST(Judge, FindsAGradient) {
  for (const Entry entry : {Entry::kForward, Entry::kStep, Entry::kStepGPipe, Entry::kStepTable}) {
    expect_found(
        program_with(
            [](ScaleImpl& scale) {
              scale.weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
            },
            entry),
        "gradient");
  }
  expect_found(program_with([](ScaleImpl& scale) { scale.weight.requires_grad_(false); }),
               "gradient, missing");
}

// The fault affects the gradients of all leaves that the seed chooses, so it is found whichever
// they are.
TEST(Judge, FindsAGradientThatWasAskedFor) {
  for (const Ask ask : {Ask::kGrad, Ask::kBackward}) {
    for (const bool one_worker : {false, true}) {
      const auto asking = [&](Fault fault) {
        Program program = program_with(std::move(fault), Entry::kForward);
        program.asked = ask;
        program.one_worker = one_worker;
        program.calls = 2;
        return program;
      };
      expect_found(asking([](ScaleImpl& scale) {
                     scale.after = [](ScaleImpl&, Tensors& result) {
                       result[0].register_hook([](const Tensor& gradient) { return gradient * 2; });
                     };
                   }),
                   "gradient");
      EXPECT_EQ(run(asking(nullptr)).kind, Outcome::kEqual);
    }
  }
}

TEST(Judge, FindsThatTheCallersRoundingDoesNotReachALayer) {
  const auto rounding = [](Fault fault) {
    Program program = program_with(std::move(fault));
    program.rounding = Rounding::kUpward;
    return program;
  };
  expect_found(rounding([](ScaleImpl& scale) {
                 scale.before = [](ScaleImpl&, Tensor&) { std::fesetround(FE_TONEAREST); };
               }),
               "output");
  EXPECT_EQ(run(rounding(nullptr)).kind, Outcome::kEqual);
}

// The fault adds up the gradients of the micro-batches in the reverse order. There are so many
// terms that the sums of all columns cannot be equal by chance on any processor.
TEST(Judge, FindsTheOrderOfSums) {
  constexpr int64_t kSummands = 32;
  const Fault fault = [](ScaleImpl& scale) {
    auto gradients = std::make_shared<Tensors>();
    scale.weight.register_hook([gradients](const Tensor& gradient) {
      gradients->push_back(gradient.clone());
      if (gradients->size() < kSummands) return at::zeros_like(gradient);
      Tensor sum = gradients->back();
      for (size_t k = gradients->size() - 1; k-- > 0;) sum = sum + (*gradients)[k];
      return sum;
    });
  };
  Program program = program_with(fault);
  program.chunks = kSummands;
  program.rows = 2 * kSummands;
  expect_found(program, "gradient");
  // A difference only in the order of sums is reported as such.
  program.in_double = true;
  const Outcome outcome = run(program);
  EXPECT_EQ(outcome.kind, Outcome::kEqualButSums) << outcome.what;
}

TEST(Judge, InDoubleMoreThanTheOrderOfSumsIsADifference) {
  Program program = program_with([](ScaleImpl& scale) {
    scale.weight.register_hook([](const Tensor& gradient) { return gradient * (1 + 1e-6); });
  });
  program.in_double = true;
  expect_found(program, "gradient");
}

// A program with one stage, so that the layer with the fault gets the caller's input.
Program program_of_one_stage(Fault fault) {
  Program program = program_with(std::move(fault));
  program.layers.erase(program.layers.begin());
  program.balance = {1};
  program.checkpoints = {Checkpoint::kNever};
  return program;
}

TEST(Judge, FindsAnInputsGradient) {
  expect_found(program_of_one_stage([](ScaleImpl& scale) {
                 scale.before = [](ScaleImpl&, Tensor& x) {
                   x = x * 1;
                   x.register_hook([](const Tensor& gradient) { return gradient * 2; });
                 };
               }),
               "input gradient");
}

TEST(Judge, FindsWhatIsDoneToAnInput) {
  for (const double added : {1.0, 0.0}) {
    Program program = program_of_one_stage([added](ScaleImpl& scale) {
      scale.before = [added](ScaleImpl&, Tensor& x) {
        const Tensor as_it_was = x.clone();
        x.add_(added);
        x = as_it_was;
      };
    });
    program.inputs[0].requires_grad = false;
    expect_found(program, added != 0 ? "input" : "change of input");
  }
}

TEST(Judge, FindsOtherStridesOfAGradient) {
  expect_found(program_with([](ScaleImpl& scale) {
                 scale.weight.mutable_grad() = at::zeros({kWidth, 2}).select(1, 0);
               }),
               "strides of gradient");
}

TEST(Judge, FindsABuffer) {
  for (const Entry entry : kEntries) {
    expect_found(program_with(
                     [](ScaleImpl& scale) {
                       scale.before = [](ScaleImpl& layer, Tensor&) {
                         if (layer.calls.item<float>() == 3) layer.calls += 1;
                       };
                     },
                     entry),
                 "buffer");
  }
}

TEST(Judge, FindsAParameter) {
  Program program = program_with([](ScaleImpl& scale) {
    scale.after = [](ScaleImpl& layer, Tensors&) {
      c10::NoGradGuard no_grad;
      layer.weight.add_(1);
    };
  });
  program.entry = Entry::kNoGrad;
  program.chunks = 1;
  expect_found(program, "parameter");
}

TEST(Judge, FindsWhatOneCallMakesOfTheNext) {
  Program program = program_with([](ScaleImpl& scale) {
    scale.before = [](ScaleImpl& layer, Tensor& x) {
      if (layer.calls.item<float>() >= 4) x = x * 2;
    };
  });
  program.calls = 2;
  const Outcome outcome = run(program);
  EXPECT_EQ(outcome.kind, Outcome::kDifferent);
  EXPECT_THAT(outcome.what, HasSubstr("call 1, output"));
}

TEST(Judge, FindsHooksThatRunTooOften) {
  expect_found(
      program_with([](ScaleImpl& scale) {
        scale.after = [](ScaleImpl& layer, Tensors& result) {
          result[0].register_hook([counter = layer.counter](const Tensor&) { ++*counter; });
        };
      }),
      "count of hooks");
}

TEST(Judge, WhatIsThrownIsAFailureUnlessItIsDocumented) {
  auto throwing = [](const std::string& message) {
    return program_with([message](ScaleImpl& scale) {
      scale.before = [message](ScaleImpl&, Tensor&) { throw std::runtime_error(message); };
    });
  };
  const Outcome unknown = run(throwing("something broke"));
  EXPECT_EQ(unknown.kind, Outcome::kThrows);
  EXPECT_TRUE(unknown.failed());
  EXPECT_THAT(unknown.what, HasSubstr("something broke"));
  const Outcome documented = run(throwing("dimension 0 of an output must be the batch"));
  EXPECT_EQ(documented.kind, Outcome::kRefused);
  EXPECT_FALSE(documented.failed());
}

TEST(Judge, AProgramThatFailsWithoutAPipelineIsInvalid) {
  Program program = program_with(nullptr);
  program.inputs[0].shape = {kWidth + 1};
  const Outcome outcome = run(program);
  EXPECT_EQ(outcome.kind, Outcome::kInvalid) << outcome.what;
  EXPECT_FALSE(outcome.failed());
}

// A large program that contains the layer with the fault.
Program large_program(Fault fault) {
  Program program = program_with(std::move(fault), Entry::kStepGPipe);
  program.layers = {linear(), linear(), program.layers[1]};
  // This layer takes the values that Scale returns.
  Layer first;
  first.text = "first of two";
  first.make = [](Workshop&) {
    return function_module(ValueKind::kTensors, ValueKind::kTensor, [](Tensors values) {
      Tensors result;
      result.push_back(std::move(values.at(0)));
      return result;
    });
  };
  program.layers.push_back(first);
  program.layers.push_back(linear());
  program.layers.push_back(linear());
  program.balance = {1, 2, 1, 2};
  program.checkpoints.assign(4, Checkpoint::kAlways);
  program.rows = 13;
  program.calls = 3;
  program.optimizer = Optimizer::kAdamW;
  program.loss = Loss::kSmoothL1;
  program.target_requires_grad = true;
  return program;
}

TEST(Reduce, WhatIsLeftFailsInTheSameWay) {
  const Program program = large_program([](ScaleImpl& scale) {
    scale.weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
  });
  const Outcome outcome = run(program);
  ASSERT_EQ(outcome.category, "gradient") << outcome.what;
  const Reduced reduced = reduce(program, outcome);
  EXPECT_EQ(reduced.outcome.category, "gradient");
  const Outcome again = run(reduced.program);
  EXPECT_EQ(again.kind, Outcome::kDifferent);
  EXPECT_EQ(again.category, "gradient");
  ASSERT_EQ(reduced.program.layers.size(), 1U);
  EXPECT_EQ(reduced.program.layers[0].text, "Scale()");
  EXPECT_EQ(reduced.program.balance, std::vector<int64_t>{1});
  EXPECT_EQ(reduced.program.checkpoints, std::vector<Checkpoint>{Checkpoint::kNever});
  EXPECT_EQ(reduced.program.chunks, 1);
  EXPECT_EQ(reduced.program.rows, 1);
  EXPECT_EQ(reduced.program.calls, 1);
  EXPECT_EQ(reduced.program.optimizer, Optimizer::kNone);
  EXPECT_EQ(reduced.program.loss, Loss::kMse);
  EXPECT_FALSE(reduced.program.target_requires_grad);
  EXPECT_FALSE(reduced.program.inputs[0].requires_grad);
  EXPECT_THAT(to_text(reduced.program), Not(HasSubstr("Linear")));
}

// The fault appears only in the second call of the layer, so the reduced program must still call it
// twice.
TEST(Reduce, WhatTheFailureNeedsIsKept) {
  Program program = large_program([](ScaleImpl& scale) {
    scale.after = [](ScaleImpl& layer, Tensors& result) {
      if (layer.calls.item<float>() == 2) result[0] = result[0] + 1;
    };
  });
  program.checkpoints.assign(4, Checkpoint::kNever);  // a recompute would be refused
  const Outcome outcome = run(program);
  ASSERT_EQ(outcome.category, "output") << outcome.what;
  const Reduced reduced = reduce(program, outcome);
  EXPECT_EQ(reduced.outcome.category, "output");
  EXPECT_TRUE(run(reduced.program).failed());
  EXPECT_EQ(reduced.program.layers.size(), 1U);
  // Two calls of the layer are left: for two micro-batches of one mini-batch, or for two
  // mini-batches of one micro-batch.
  EXPECT_EQ(reduced.program.chunks * reduced.program.calls, 2);
}

}  // namespace
}  // namespace gpipe::testing::programs
