// A recompute runs what its forward ran, or says why it cannot.

#include <ATen/Parallel.h>
#include <ATen/ops/igamma.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::BackwardOrder;
using testing::cpu_options;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using testing::PlainModel;
using testing::square_loss;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 6;

// --- autocast

TEST(Autocast, WeightsOfTheStepBeforeAreForgotten) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      testing::manual_seed(1);
      nn::Linear first(kWidth, kWidth), last(kWidth, kWidth);
      GPipe pipe(nn::Sequential(first, nn::Tanh(), last),
                 cpu_options({2, 1}).chunks(3).checkpoint(mode));
      const Tensor x = torch::randn({6, kWidth});
      for (int step = 0; step < 4; ++step) {
        auto plain = [&] { return last(first(x).tanh()); };
        Tensor want, have;
        {
          const testing::AutocastScope autocast(at::kCPU, type);
          want = plain();
          have = pipe->forward(x);
          EXPECT_EQ(have.scalar_type(), type);
        }
        // Rows are independent of each other here.
        EXPECT_THAT(have, EqualsBitwise(want)) << "step " << step;
        have.sum().backward();  // outside autocast
        torch::NoGradGuard no_grad;
        for (const Tensor& parameter : pipe->parameters()) parameter.add_(0.1);
        pipe->eval();
        {
          const testing::AutocastScope autocast(at::kCPU, type);
          EXPECT_THAT(pipe->forward(x), EqualsBitwise(plain())) << "evaluation " << step;
        }
        pipe->train();
      }
    }
  }
}

// --- what a checkpointed stage passes on

TEST(Recompute, ConstantsBesideActivationsWantNoGradient) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    nn::Linear first(kWidth, kWidth);
    auto add_constants = layer<Tensor, Tensors>([](Tensor x) {
      return Tensors{x.exp(), torch::full_like(x, 0.5), torch::ones({x.size(0)})};
    });
    auto use = layer<Tensors, Tensor>([](Tensors v) {
      EXPECT_TRUE(v[0].requires_grad());
      EXPECT_FALSE(v[1].requires_grad());
      EXPECT_FALSE(v[2].requires_grad());
      // igamma has no derivative for its first argument.
      return at::igamma(v[1], v[0]) * v[2].unsqueeze(1);
    });
    GPipe pipe(nn::Sequential(first, add_constants, use),
               cpu_options({2, 1}).chunks(2).checkpoint(mode));
    pipe->forward(torch::randn({4, kWidth})).sum().backward();
    EXPECT_TRUE(first->weight.grad().defined());
    auto pass_on = layer<Tensors, Tensors>([](Tensors v) { return v; });
    GPipe handing(nn::Sequential(nn::Linear(kWidth, kWidth), add_constants, pass_on),
                  cpu_options({2, 1}).chunks(2).checkpoint(mode));
    const Tensors outputs = handing->forward(Tensors{torch::randn({4, kWidth})});
    EXPECT_TRUE(outputs[0].requires_grad());
    EXPECT_FALSE(outputs[1].requires_grad());
  }
}

TEST(Recompute, ALossWithParametersBehindIntegersGetsItsGradient) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    auto classes = layer<Tensor, Tensor>([](Tensor x) { return x.argmax(1); });
    const Tensor table = torch::randn({kWidth}).requires_grad_();
    GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), classes),
               cpu_options({1, 1}).chunks(2).checkpoint(mode));
    pipe->step({torch::randn({4, kWidth})}, {},
               [&](const Tensors& o, const Tensors&) { return table.index({o.at(0)}).mean(); });
    ASSERT_TRUE(table.grad().defined());
    EXPECT_NEAR(table.grad().sum().item<double>(), 1.0, 1e-6) << "four times a quarter, rounded";
  }
}

// LibTorch takes other kernels where no gradient is wanted.
struct LstmImpl : nn::Module {
  LstmImpl() { lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(3, 5).batch_first(true))); }
  Tensor forward(Tensor x) { return std::get<0>(lstm->forward(x)); }
  nn::LSTM lstm{nullptr};
};
TORCH_MODULE(Lstm);

struct ComputedWeightImpl : nn::Module {
  ComputedWeightImpl() { weight = register_parameter("weight", torch::randn({5, 5})); }
  Tensor forward(Tensor x) { return x.matmul(weight.tanh()); }
  Tensor weight;
};
TORCH_MODULE(ComputedWeight);

TEST(Recompute, RunsTheOperatorsOfTheForward) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    testing::manual_seed(2);
    nn::Sequential module{Lstm(), ComputedWeight(), nn::Tanh()};
    const Tensor x = torch::randn({6, 4, 3});
    const Tensor y = torch::randn({6, 4, 5});
    const StepResult want =
        PlainModel(module, 3).step({x}, {y}, square_loss, BackwardOrder::kAscending);
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : module->parameters()) {
      gradients.push_back(parameter.grad().clone());
    }
    module->zero_grad();
    GPipe pipe(module, cpu_options({1, 1, 1}).chunks(3).checkpoint(mode));
    const StepResult have = pipe->step({x}, {y}, square_loss, StepOptions().keep_outputs(true));
    EXPECT_EQ(have.loss, want.loss);
    EXPECT_THAT(have.outputs, EqualsBitwise(want.outputs));
    for (size_t k = 0; k < gradients.size(); ++k) {
      EXPECT_THAT(pipe->parameters()[k].grad(), EqualsBitwise(gradients[k])) << k;
    }
  }
}

// --- random numbers in backward

// Noise in its backward.
struct NoisyFunction : torch::autograd::Function<NoisyFunction> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] + torch::rand_like(gradients[0])};
  }
};

// Computes its forward, a dropout, again in its backward instead of saving it.
struct RematerialisingFunction : torch::autograd::Function<RematerialisingFunction> {
  static Tensor compute(const Tensor& x) {
    return torch::nn::functional::dropout(x.sin(), nn::functional::DropoutFuncOptions().p(0.5));
  }
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return compute(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode grad_mode(true);
    const Tensor y = compute(x);
    return torch::autograd::grad({y}, {x}, {gradients[0]});
  }
};

TEST(RandomNumbersInBackward, AreTheSameInEveryRun) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    for (bool step : {false, true}) {
      Tensor first;
      for (const auto& balance :
           std::vector<std::vector<int64_t>>{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {3}, {2, 1}}) {
        auto noisy = [] {
          return layer<Tensor, Tensor>([](Tensor x) { return NoisyFunction::apply(x); });
        };
        testing::manual_seed(3);
        nn::Linear linear(kWidth, kWidth);
        GPipe pipe(nn::Sequential(linear, noisy(), noisy()),
                   cpu_options(balance).chunks(4).checkpoint(mode));
        const Tensor x = torch::randn({8, kWidth});
        const Tensor y = torch::randn({8, kWidth});
        StepOptions gpipe_order;
        gpipe_order.schedule(Schedule::gpipe);
        if (step) {
          pipe->step({x}, {y}, square_loss, gpipe_order);
        } else {
          square_loss({pipe->forward(x)}, {y}).backward();
        }
        if (!first.defined()) first = linear->weight.grad();
        EXPECT_THAT(linear->weight.grad(), EqualsBitwise(first));
      }
    }
  }
}

TEST(RandomNumbersInBackward, OfARematerialisingFunctionAreThoseOfItsForward) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    auto run = [&](bool rematerialising) {
      auto drop = layer<Tensor, Tensor>([rematerialising](Tensor x) {
        // Others draw before and after it, and it runs twice.
        x = nn::functional::dropout(x, nn::functional::DropoutFuncOptions().p(0.3));
        for (int k = 0; k < 2; ++k) {
          x = rematerialising ? RematerialisingFunction::apply(x)
                              : RematerialisingFunction::compute(x);
        }
        return nn::functional::dropout(x, nn::functional::DropoutFuncOptions().p(0.3));
      });
      testing::manual_seed(4);
      nn::Linear linear(kWidth, kWidth);
      GPipe pipe(nn::Sequential(linear, drop, nn::Linear(kWidth, kWidth)),
                 cpu_options({1, 2}).chunks(4).checkpoint(mode));
      pipe->step({torch::randn({8, kWidth})}, {torch::randn({8, kWidth})}, square_loss);
      return linear->weight.grad();
    };
    EXPECT_THAT(run(true), EqualsBitwise(run(false)));
  }
}

// A custom function inside another one makes a node, too, even where nothing is recorded.
struct SwishFunction : torch::autograd::Function<SwishFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x.sigmoid();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0];
    const Tensor s = x.sigmoid();
    return {gradients[0] * (s + x * s * (1 - s))};
  }
};

struct NestedFunction : torch::autograd::Function<NestedFunction> {
  static Tensor compute(const Tensor& x) {
    return nn::functional::dropout(SwishFunction::apply(SwishFunction::apply(x)),
                                   nn::functional::DropoutFuncOptions().p(0.5));
  }
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return compute(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode grad_mode(true);
    return torch::autograd::grad({compute(x)}, {x}, {gradients[0]});
  }
};

TEST(RandomNumbersInBackward, AlsoWithCustomFunctionsInside) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    auto run = [&](bool rematerialising, bool named) {
      auto drop = layer<Tensor, Tensor>([rematerialising](Tensor x) {
        return rematerialising ? NestedFunction::apply(x) : NestedFunction::compute(x);
      });
      testing::manual_seed(4);
      nn::Linear linear(kWidth, kWidth);
      GPipe pipe(nn::Sequential(linear, drop, nn::Linear(kWidth, kWidth)),
                 cpu_options({1, 2}).chunks(4).checkpoint(mode));
      const Tensor loss =
          square_loss({pipe->forward(torch::randn({8, kWidth}))}, {torch::randn({8, kWidth})});
      if (named) return torch::autograd::grad({loss}, {linear->weight})[0];
      loss.backward();
      return linear->weight.grad();
    };
    const Tensor want = run(false, false);
    EXPECT_THAT(run(true, false), EqualsBitwise(want));
    EXPECT_THAT(run(true, true), EqualsBitwise(want));
  }
}

// --- layers whose output depends on more than input and parameters

TEST(Recompute, OfALayerWithAStateIsAnError) {
  auto refused = ThrowsMessage<c10::Error>(
      AllOf(HasSubstr("gave other values than its forward"), HasSubstr("kNever")));
  // A hidden state in a member.
  auto recurrent = [state = Tensor()](Tensor x) mutable {
    state = state.defined() && state.size(0) == x.size(0) ? (x + state * 0.5) : x;
    state = state.detach();
    return x + state;
  };
  // Random numbers that LibTorch does not draw.
  auto noisy = [random = std::mt19937(5)](Tensor x) mutable {
    return x + static_cast<double>(random() % 1000);
  };
  // A tensor that is not a parameter.
  auto constant = std::make_shared<Tensor>(torch::ones({kWidth}));
  auto scaling = [constant](Tensor x) { return x * *constant; };
  const std::vector<std::function<Tensor(Tensor)>> layers = {recurrent, noisy, scaling};
  for (size_t k = 0; k < layers.size(); ++k) {
    SCOPED_TRACE(k);
    GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), layer<Tensor, Tensor>(layers[k])),
               cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
    const Tensor output = pipe->forward(torch::randn({6, kWidth}));
    constant->mul_(2);
    EXPECT_THAT([&] { output.sum().backward(); }, refused);
  }
}

// What a stage hands on may be of any type, and its values may lie anyhow.
TEST(Recompute, OfALayerWithAStateIsAnErrorInEveryTypeAndLayout) {
  struct Case {
    const char* what;
    std::function<Tensor(Tensor)> leave;
  };
  const std::vector<Case> cases = {
      {"float", [](Tensor x) { return x; }},
      {"double", [](Tensor x) { return x.to(torch::kDouble); }},
      {"bfloat16", [](Tensor x) { return x.to(torch::kBFloat16); }},
      {"half", [](Tensor x) { return x.to(torch::kHalf); }},
      {"complex64", [](Tensor x) { return torch::complex(torch::ones_like(x), x); }},
      {"complex128",
       [](Tensor x) { return torch::complex(x, torch::ones_like(x)).to(torch::kComplexDouble); }},
      {"conjugated", [](Tensor x) { return torch::complex(torch::ones_like(x), x).conj(); }},
      {"float8", [](Tensor x) { return x.to(torch::kFloat8_e4m3fn); }},
      {"expanded",
       [](Tensor x) {
         return x.sum(1, true).expand({-1, kWidth});
       }},
      {"expanded bfloat16",
       [](Tensor x) {
         return x.sum(1, true).to(torch::kBFloat16).expand({-1, kWidth});
       }},
      {"gaps", [](Tensor x) { return x.narrow(1, 1, 3); }},
      {"overlapping", [](Tensor x) { return x.unfold(1, 3, 1); }},
      {"transposed",
       [](Tensor x) {
         return x.view({-1, 2, 3}).transpose(1, 2);
       }},
      {"sparse", [](Tensor x) { return x.to_sparse(); }},
  };
  auto refused = ThrowsMessage<c10::Error>(HasSubstr("gave other values than its forward"));
  for (const Case& test_case : cases) {
    for (const bool state : {false, true}) {
      SCOPED_TRACE(std::string(test_case.what) + (state ? " with a state" : ""));
      auto leave = layer<Tensor, Tensor>([&test_case, state](Tensor x) {
        return test_case.leave(x * (state && is_recomputing() ? 3.0 : 2.0));
      });
      auto arrive = layer<Tensor, Tensor>([](Tensor x) {
        if (x.is_sparse()) x = x.to_dense();
        if (x.is_complex()) x = torch::real(x) + torch::imag(x);
        return x.to(torch::kFloat) * 1.0;
      });
      nn::Linear linear(kWidth, kWidth);
      GPipe pipe(nn::Sequential(linear, leave, arrive),
                 cpu_options({2, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
      const Tensor x = torch::randn({6, kWidth});
      const auto forward = [&] { pipe->forward(x).sum().backward(); };
      const auto step = [&] {
        pipe->step({x}, {}, [](const Tensors& o, const Tensors&) { return o[0].square().sum(); });
      };
      if (state) {
        EXPECT_THAT(forward, refused);
        EXPECT_THAT(step, refused);
      } else {
        forward();
        step();
        EXPECT_TRUE(linear->weight.grad().defined());
      }
    }
  }
}

TEST(Recompute, OfALayerWithAStateIsAnErrorUnderAutocast) {
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    auto state = layer<Tensor, Tensor>([](Tensor x) { return x * (is_recomputing() ? 3.0 : 2.0); });
    GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), state, nn::Linear(kWidth, kWidth)),
               cpu_options({2, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
    const testing::AutocastScope autocast(at::kCPU, type);
    const Tensor output = pipe->forward(torch::randn({6, kWidth}));
    EXPECT_EQ(output.scalar_type(), type);
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<c10::Error>(HasSubstr("gave other values than its forward")));
  }
}

TEST(Recompute, ParametersChangedByAHookInTheMiddleOfAStepAreAnError) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    nn::Linear first(kWidth, kWidth);
    first->bias.register_hook([first](const Tensor&) {
      torch::NoGradGuard no_grad;
      first->bias.add_(0.1);
    });
    GPipe pipe(nn::Sequential(first, nn::Tanh()), cpu_options({1, 1}).chunks(6).checkpoint(mode));
    EXPECT_THAT(([&] {
                  pipe->step({torch::randn({6, kWidth})}, {torch::randn({6, kWidth})}, square_loss);
                }),
                ThrowsMessage<c10::Error>(HasSubstr("'0.bias' has been modified")));
  }
}

TEST(Recompute, AModuleRegisteredInTheFirstForwardIsNoChange) {
  struct LazyImpl : nn::Module {
    Tensor forward(Tensor x) {
      if (!linear) linear = register_module("linear", nn::Linear(x.size(1), 3));
      return linear->forward(x);
    }
    nn::Linear linear{nullptr};
  };
  auto lazy = std::make_shared<LazyImpl>();
  nn::Sequential module;
  module->push_back(lazy);
  module->push_back(nn::Tanh());
  GPipe pipe(module, cpu_options({1, 1}).checkpoint(Checkpoint::kAlways));
  pipe->forward(torch::randn({4, kWidth})).sum().backward();
  EXPECT_TRUE(lazy->linear->weight.grad().defined());
}

// --- changes between forward and backward

// The graph of a checkpointed cell's first pass is gone before its loss runs.
TEST(Recompute, HoldsNothingOfTheFirstPassWhileTheLossRuns) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    c10::weak_intrusive_ptr<c10::StorageImpl> saved(
        torch::ones({1}).storage().getWeakStorageImpl());
    GPipe pipe(
        nn::Sequential(nn::Linear(4, 4), testing::layer<at::Tensor, at::Tensor>([&](at::Tensor x) {
                         const at::Tensor middle = x * 2;  // kept for the backward of the square
                         saved = middle.storage().getWeakStorageImpl();
                         return middle * middle;
                       })),
        cpu_options({2}).checkpoint(mode));
    bool checked = false;
    pipe->step({torch::ones({4, 4})}, {}, [&](const Tensors& outputs, const Tensors&) {
      if (!checked) {
        EXPECT_EQ(saved.expired(), mode == Checkpoint::kAlways);
      }
      checked = true;
      return outputs[0].mean();
    });
    EXPECT_TRUE(checked);
  }
}

TEST(Recompute, AfterAChangeOfTheModelIsAnError) {
  struct Case {
    const char* what;
    std::function<void(nn::Linear&, GPipe&)> change;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"parameter",
       [](nn::Linear& linear, GPipe&) {
         torch::NoGradGuard no_grad;
         linear->weight.add_(1);
       },
       "'1.weight' has been modified by an inplace operation"},
      {"data",
       [](nn::Linear& linear, GPipe&) {
         linear->weight.set_data(torch::ones({kWidth, kWidth}));
       },
       "'1.weight'"},
      {"requires_grad", [](nn::Linear& linear, GPipe&) { linear->bias.set_requires_grad(false); },
       "requires_grad of '1.bias' was set to false"},
      {"requires_grad of the first",
       [](nn::Linear& linear, GPipe&) { linear->weight.set_requires_grad(false); },
       "requires_grad of '1.weight' was set to false"},
      {"mode", [](nn::Linear& linear, GPipe&) { linear->eval(); },
       "the module '1' was set to eval"}};
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    nn::Linear linear(kWidth, kWidth);
    GPipe pipe(nn::Sequential(nn::Tanh(), linear, nn::Dropout(0.5)),
               cpu_options({2, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
    const Tensor output = pipe->forward(torch::randn({4, kWidth}));
    wrong.change(linear, pipe);
    EXPECT_THAT([&] { output.sum().backward(); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr(wrong.message), HasSubstr("kNever"))));
    EXPECT_FALSE(linear->weight.grad().defined());
    // The pipeline remains usable.
    pipe->train();
    linear->weight.set_requires_grad(true);
    pipe->forward(torch::randn({4, kWidth})).sum().backward();
    EXPECT_TRUE(linear->weight.grad().defined());
  }
  // Without a recompute autograd itself sees what matters.
  nn::Linear linear(kWidth, kWidth);
  GPipe pipe(nn::Sequential(linear, nn::Tanh()),
             cpu_options({1, 1}).checkpoint(Checkpoint::kNever));
  const Tensor output = pipe->forward(torch::randn({4, kWidth}));
  {
    torch::NoGradGuard no_grad;
    linear->bias.add_(1);  // not needed by any backward
  }
  output.sum().backward();
}

TEST(Recompute, WithoutAnyChangeBetweenTwoForwardsIsFine) {
  nn::Linear linear(kWidth, kWidth);
  GPipe pipe(nn::Sequential(linear, nn::Tanh()),
             cpu_options({1, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
  const Tensor first = pipe->forward(torch::randn({4, kWidth}));
  const Tensor second = pipe->forward(torch::randn({4, kWidth}));
  (first.sum() + second.sum()).backward();
  EXPECT_TRUE(linear->weight.grad().defined());
}

}  // namespace
}  // namespace gpipe
