// Tests that a recompute computes the same as its forward, or says why it cannot.

#include <ATen/Parallel.h>
#include <ATen/ops/igamma.h>
#include <c10/core/InferenceMode.h>
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
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
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
using ::testing::AnyOf;
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
        // The rows are independent of each other here, so the cut into micro-batches changes no
        // bit.
        EXPECT_THAT(have, EqualsBitwise(want)) << "step " << step;
        have.sum().backward();  // outside of autocast
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

// --- The outputs that a checkpointed stage passes on.

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
      // igamma() has no derivative for its first argument, so this throws if v[1] required a
      // gradient.
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

// A layer for which LibTorch takes another kernel if no gradient is required.
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

// --- Random numbers that are drawn in a backward.

// A function that adds noise in its backward.
struct NoisyFunction : torch::autograd::Function<NoisyFunction> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] + torch::rand_like(gradients[0])};
  }
};

// A function that computes its forward, a dropout, again in its backward, instead of saving it.
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

TEST(RandomNumbersInBackward, OfARematerializingFunctionAreThoseOfItsForward) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    auto run = [&](bool rematerialising) {
      auto drop = layer<Tensor, Tensor>([rematerialising](Tensor x) {
        // Dropouts draw before and after the rematerializing function, which is called twice. Its
        // draws must not shift theirs.
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

// A custom function that is called inside another one. It makes a node, even if nothing is
// recorded.
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

// --- Layers whose output depends on more than their input and parameters.

TEST(Recompute, OfALayerWithAStateIsAnError) {
  auto refused = ThrowsMessage<c10::Error>(
      AllOf(HasSubstr("gave other values than its forward"), HasSubstr("kNever")));
  // A layer with a hidden state in a member.
  auto recurrent = [state = Tensor()](Tensor x) mutable {
    state = state.defined() && state.size(0) == x.size(0) ? (x + state * 0.5) : x;
    state = state.detach();
    return x + state;
  };
  // A layer with random numbers that LibTorch does not draw.
  auto noisy = [random = std::mt19937(5)](Tensor x) mutable {
    return x + static_cast<double>(random() % 1000);
  };
  // A layer that uses a tensor that is not a parameter.
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

// --- Buffers that layers write themselves.

// A layer that writes its buffers in `write`, and returns the result of `use` for its input and its
// buffers.
struct WriterImpl : nn::Module {
  using Write = std::function<void(WriterImpl&, const Tensor&)>;
  using Use = std::function<Tensor(WriterImpl&, const Tensor&)>;
  WriterImpl(std::vector<Tensor> buffers, Write write, Use use)
      : write(std::move(write)), use(std::move(use)) {
    inner = register_module("inner", std::make_shared<nn::Module>());
    for (size_t k = 0; k < buffers.size(); ++k) {
      // Every second buffer is in a nested module.
      nn::Module& owner = k % 2 == 0 ? *inner : static_cast<nn::Module&>(*this);
      own.push_back(owner.register_buffer("b" + std::to_string(k), buffers[k]));
    }
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      write(*this, x.detach());
    }
    return use(*this, linear(x));
  }
  Write write;
  Use use;
  std::shared_ptr<nn::Module> inner;
  std::vector<Tensor> own;
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Writer);

Tensor as_it_is(WriterImpl& /*self*/, const Tensor& x) { return x; }

struct WritingLayer {
  std::string name;
  std::function<Writer()> make;
};

std::vector<WritingLayer> writing_layers() {
  const auto zeros = [](std::vector<int64_t> shape, at::ScalarType type = at::kFloat) {
    return torch::zeros(shape, type);
  };
  const auto add = [&](std::vector<WritingLayer>& to, std::string name, auto buffers,
                       WriterImpl::Write write, WriterImpl::Use use) {
    to.push_back({std::move(name), [=] { return Writer(buffers(), write, use); }});
  };
  std::vector<WritingLayer> all;
  const auto average = [](WriterImpl& self, const Tensor& x) {
    self.own[0].mul_(0.9).add_(x.mean(0), 0.1);
  };
  add(
      all, "counter", [=] { return std::vector<Tensor>{zeros({}, at::kLong)}; },
      [](WriterImpl& self, const Tensor&) { self.own[0].add_(1); }, as_it_is);
  add(
      all, "counter written past LibTorch",
      [=] { return std::vector<Tensor>{zeros({}, at::kLong)}; },
      [](WriterImpl& self, const Tensor&) { ++*self.own[0].mutable_data_ptr<int64_t>(); },
      as_it_is);
  add(
      all, "every second call",
      [=] {
        return std::vector<Tensor>{zeros({}, at::kLong), zeros({})};
      },
      [](WriterImpl& self, const Tensor& x) {
        self.own[0].add_(1);
        if (self.own[0].item<int64_t>() % 2 == 0) self.own[1].add_(x.mean());
      },
      as_it_is);
  add(
      all, "average", [=] { return std::vector<Tensor>{zeros({kWidth})}; }, average, as_it_is);
  add(
      all, "large average",
      [=] {
        return std::vector<Tensor>{zeros({400, kWidth})};
      },
      average, as_it_is);
  add(
      all, "average that the output needs", [=] { return std::vector<Tensor>{zeros({kWidth})}; },
      average, [](WriterImpl& self, const Tensor& x) { return x + self.own[0] * 1e-5; });
  add(
      all, "set_", [=] { return std::vector<Tensor>{zeros({kWidth})}; },
      [](WriterImpl& self, const Tensor& x) { self.own[0].set_(self.own[0] + x.mean(0)); },
      as_it_is);
  add(
      all, "set_data",
      [=] {
        return std::vector<Tensor>{zeros({400, kWidth})};
      },
      [](WriterImpl& self, const Tensor& x) { self.own[0].set_data(self.own[0] + x.mean(0)); },
      as_it_is);
  add(
      all, "grows", [=] { return std::vector<Tensor>{zeros({0})}; },
      [](WriterImpl& self, const Tensor& x) {
        self.own[0].set_data(torch::cat({self.own[0], x.mean().view(1)}));
      },
      as_it_is);
  add(
      all, "two views of one memory",
      [=] {
        const Tensor both = zeros({2, kWidth});
        return std::vector<Tensor>{both[0], both[1], both};
      },
      [](WriterImpl& self, const Tensor& x) { self.own[2].mul_(0.5).add_(x.mean(0)); }, as_it_is);
  // In a spectral norm's power iteration, the output hardly shows the buffer's value, so comparing
  // outputs would not find a wrong value.
  add(
      all, "power iteration", [=] { return std::vector<Tensor>{torch::ones({kWidth})}; },
      [](WriterImpl& self, const Tensor&) {
        const Tensor next = self.linear->weight.t().mv(self.linear->weight.mv(self.own[0]));
        self.own[0].copy_(next / next.norm());
      },
      [](WriterImpl& self, const Tensor& x) {
        return x / self.linear->weight.mv(self.own[0].clone()).norm();
      });
  add(
      all, "running maximum", [=] { return std::vector<Tensor>{torch::full({}, 0.01)}; },
      [](WriterImpl& self, const Tensor& x) {
        self.own[0].copy_(torch::maximum(self.own[0] * 0.99999, x.abs().max()));
      },
      [](WriterImpl& self, const Tensor& x) { return x / self.own[0].clone(); });
  add(
      all, "a cache that is filled anew",
      [=] {
        return std::vector<Tensor>{zeros({400, kWidth})};
      },
      [](WriterImpl& self, const Tensor&) {
        self.own[0].copy_(torch::eye(kWidth).repeat({67, 1}).narrow(0, 0, 400));
      },
      [](WriterImpl& self, const Tensor& x) {
        return x * (self.own[0].narrow(0, 0, x.size(0)) + 1);
      });
  add(
      all, "a cache for the longest",
      [=] {
        return std::vector<Tensor>{zeros({0, kWidth})};
      },
      [](WriterImpl& self, const Tensor& x) {
        if (self.own[0].size(0) < x.size(0)) self.own[0].set_data(torch::ones({x.size(0), kWidth}));
      },
      [](WriterImpl& self, const Tensor& x) {
        return x * self.own[0].narrow(0, 0, x.size(0)).clone();
      });
  // A member of the layer says whether the cache is filled. The pipeline does not put members back.
  add(
      all, "a cache that is filled once",
      [=] {
        return std::vector<Tensor>{zeros({400, kWidth})};
      },
      [filled = false](WriterImpl& self, const Tensor&) mutable {
        if (!std::exchange(filled, true)) self.own[0].copy_(torch::ones({400, kWidth}) * 2);
      },
      [](WriterImpl& self, const Tensor& x) { return x * self.own[0].narrow(0, 0, x.size(0)); });
  add(
      all, "a cache that grows",
      [=] {
        return std::vector<Tensor>{zeros({0, kWidth}), zeros({0, kWidth})};
      },
      [length = int64_t{0}](WriterImpl& self, const Tensor& x) mutable {
        const int64_t needed = x.size(0) + (x.abs().max().item<float>() > 2 ? 1 : 0);
        if (needed <= length) return;
        length = needed;
        for (Tensor& cache : self.own) cache.set_data(torch::ones({needed, kWidth}) * 2);
      },
      [](WriterImpl& self, const Tensor& x) { return x * self.own[1].narrow(0, 0, x.size(0)); });
  add(
      all, "a small cache and a counter",
      [=] {
        return std::vector<Tensor>{zeros({kWidth}), zeros({kWidth})};
      },
      [filled = false](WriterImpl& self, const Tensor&) mutable {
        if (!std::exchange(filled, true)) self.own[0].fill_(2);
        self.own[1].add_(1);
      },
      [](WriterImpl& self, const Tensor& x) { return x * self.own[0] + self.own[1].clone(); });
  // The second buffer is a factor that affects gradients only. Another buffer changes in each
  // forward.
  const auto reverse = [](WriterImpl& self, const Tensor& x) {
    const Tensor y = x * 1;
    if (y.requires_grad()) {
      y.register_hook([factor = self.own[1].clone()](const Tensor& g) { return g * -factor[0]; });
    }
    return y;
  };
  for (const int64_t size : {1, 4000}) {
    for (const int64_t rest : {1, 3}) {
      add(
          all, "a factor of gradients that begins late, or every fourth time",
          [=] {
            return std::vector<Tensor>{zeros({}, at::kLong), torch::ones({size})};
          },
          [rest](WriterImpl& self, const Tensor&) {
            self.own[0].add_(1);
            if (self.own[0].item<int64_t>() % 4 == rest) self.own[1].mul_(1.5);
          },
          reverse);
    }
  }
  add(
      all, "a codebook that the first rows fill",
      [=] {
        return std::vector<Tensor>{zeros({1}), zeros({kWidth})};
      },
      [](WriterImpl& self, const Tensor& x) {
        if (self.own[0].item<float>() == 0) {
          self.own[1].copy_(x.mean(0));
          self.own[0].fill_(1);
        }
        self.own[1].mul_(0.9).add_(x.mean(0), 0.1);
      },
      [](WriterImpl& self, const Tensor& x) { return x + self.own[1].clone(); });
  add(
      all, "registered in the first forward", [] { return std::vector<Tensor>(); },
      [=](WriterImpl& self, const Tensor& x) {
        if (self.own.empty()) self.own.push_back(self.register_buffer("late", zeros({kWidth})));
        self.own[0].mul_(0.9).add_(x.mean(0), 0.1);
      },
      [](WriterImpl& self, const Tensor& x) { return x + self.own[0].clone(); });
  add(
      all, "another tensor registered in each forward",
      [=] { return std::vector<Tensor>{zeros({kWidth})}; },
      [reference = static_cast<Tensor*>(nullptr)](WriterImpl& self, const Tensor& x) mutable {
        if (reference == nullptr) reference = &self.register_buffer("late", torch::zeros({kWidth}));
        *reference = *reference * 0.9 + x.mean(0);
        self.own[0] = *reference;
      },
      [](WriterImpl& self, const Tensor& x) { return x + self.own[0]; });
  add(
      all, "set_, every third time",
      [=] {
        return std::vector<Tensor>{zeros({}, at::kLong), zeros({kWidth})};
      },
      [](WriterImpl& self, const Tensor& x) {
        self.own[0].add_(1);
        if (self.own[0].item<int64_t>() % 3 == 2) {
          self.own[1].set_(self.own[1] * 0.9 + x.mean(0).abs());
        }
      },
      [](WriterImpl& self, const Tensor& x) { return x + self.own[1].clone(); });
  add(
      all, "asks",
      [=] {
        return std::vector<Tensor>{zeros({}, at::kLong), zeros({kWidth})};
      },
      [](WriterImpl& self, const Tensor& x) {
        if (is_recomputing()) return;
        self.own[0].add_(1);
        self.own[1].add_(x.mean(0));
      },
      as_it_is);
  add(
      all, "counts where it is not dropped",
      [=] { return std::vector<Tensor>{zeros({}, at::kLong)}; },
      [](WriterImpl& self, const Tensor&) {
        if (!is_checkpointing()) self.own[0].add_(1);
      },
      as_it_is);
  return all;
}

// Gradients and buffers must be those of the plain loop over micro-batches, in the first step and
// in later ones.
TEST(Recompute, LeavesBuffersThatLayersWriteAsTheLoopDoes) {
  at::set_num_threads(1);
  for (const WritingLayer& writing : writing_layers()) {
    for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast}) {
      for (const char* schedule : {"1f1b", "gpipe", "forward"}) {
        SCOPED_TRACE(writing.name + ", " + to_text(mode) + ", " + schedule);
        const auto make = [&] {
          testing::manual_seed(5);
          return nn::Sequential(writing.make(), nn::Tanh(), writing.make(),
                                nn::Linear(kWidth, kWidth));
        };
        const nn::Sequential plain = make();
        PlainModel loop(plain, 4);
        GPipe pipe(make(), cpu_options({2, 2}).chunks(4).checkpoint(mode));
        for (int call = 0; call < 3; ++call) {
          testing::manual_seed(100 + call);
          const Tensor x = torch::randn({8, kWidth});
          const Tensor target = torch::randn({8, kWidth});
          if (schedule == std::string("forward")) {
            loop.forward_backward({x}, {target}, square_loss);
            square_loss({pipe->forward(x)}, {target}).backward();
          } else {
            const bool fill_drain = schedule == std::string("gpipe");
            loop.step({x}, {target}, square_loss,
                      fill_drain ? BackwardOrder::kDescending : BackwardOrder::kAscending);
            StepOptions options;
            if (fill_drain) options.schedule(Schedule::gpipe);
            pipe->step({x}, {target}, square_loss, options);
          }
          const auto buffers = pipe->named_buffers();
          for (const auto& item : plain->named_buffers()) {
            EXPECT_THAT(*buffers.find(item.key()), EqualsBitwise(item.value())) << item.key();
          }
          const auto parameters = pipe->named_parameters();
          for (const auto& item : plain->named_parameters()) {
            EXPECT_THAT(parameters.find(item.key())->grad(), EqualsBitwise(item.value().grad()))
                << item.key();
          }
        }
      }
    }
  }
}

// The error names a buffer that cannot be put back, because the layer asks whether it is
// recomputed, or because a hook changes the buffer in the backward.
TEST(Recompute, NamesABufferThatItCannotPutBack) {
  struct Case {
    std::string name;
    std::string text;
    std::function<Tensor(WriterImpl&, const Tensor&)> use;
    WriterImpl::Write write = [](WriterImpl&, const Tensor&) {};
  };
  const std::vector<Case> cases = {
      {"asked and yet changed", "a recompute has changed the buffer '0.inner.b0' (layer 0)",
       [](WriterImpl& self, const Tensor& x) {
         const torch::NoGradGuard no_grad;
         self.own[0].add_(is_recomputing() ? 2 : 1);
         return x;
       }},
      {"changed by the backward, too", "a backward has changed the buffer '0.inner.b0'",
       [](WriterImpl& self, const Tensor& x) {
         x.register_hook([buffer = self.own[0]](const Tensor&) { buffer.add_(1); });
         return x;
       },
       [](WriterImpl& self, const Tensor&) { self.own[0].add_(1); }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Writer writer(std::vector<Tensor>{torch::zeros({kWidth}), torch::zeros({1})}, each.write,
                  each.use);
    GPipe pipe(nn::Sequential(writer, nn::Tanh()),
               cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
    EXPECT_THAT(([&] {
                  pipe->step({torch::randn({6, kWidth})}, {torch::randn({6, kWidth})}, square_loss);
                }),
                ThrowsMessage<c10::Error>(
                    AllOf(HasSubstr(each.text), AnyOf(HasSubstr("kNever"), HasSubstr("clone()")))));
  }
}

// Between a forward and its backward come other forwards, which are not checkpointed and without
// gradients. They change the buffer, but the recompute must begin with the value of its own
// forward.
TEST(Recompute, BeginsWithWhatItsForwardSawWhateverRanSince) {
  const auto make = [] {
    testing::manual_seed(5);
    const auto count = [](WriterImpl& self, const Tensor&) { self.own[0].add_(1); };
    const auto scale = [](WriterImpl& self, const Tensor& x) { return x * self.own[0].clone(); };
    return nn::Sequential(Writer(std::vector<Tensor>{torch::zeros({1})}, count, scale), nn::Tanh());
  };
  nn::Sequential plain = make();
  GPipe pipe(make(), cpu_options({1, 1}).chunks(1).checkpoint(Checkpoint::kAlways));
  for (int call = 0; call < 3; ++call) {
    const Tensor x = torch::randn({4, kWidth});
    const Tensor expected = plain->forward(x);
    const Tensor output = pipe->forward(x);
    {
      const torch::NoGradGuard no_grad;
      for (int other = 0; other < call; ++other) {
        (void)plain->forward(x);
        (void)pipe->forward(x);
      }
    }
    expected.sum().backward();
    output.sum().backward();
    const auto parameters = pipe->named_parameters();
    for (const auto& item : plain->named_parameters()) {
      EXPECT_THAT(parameters.find(item.key())->grad(), EqualsBitwise(item.value().grad()));
    }
    EXPECT_THAT(pipe->buffers()[0], EqualsBitwise(plain->buffers()[0]));
  }
}

// Between a forward and its backward comes a forward in which a layer changes its buffer, and which
// then fails. The outputs do not depend on the buffer, but the gradients do.
TEST(Recompute, BeginsWithWhatItsForwardSawAlsoAfterAForwardThatFailed) {
  enum class End : uint8_t { kNone, kSameLayer, kLaterLayer, kMemory, kCheckOfValues };
  for (const End end : {End::kSameLayer, End::kLaterLayer, End::kMemory, End::kCheckOfValues}) {
    for (const int64_t size : {1, 4000}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(end)) + ", " + std::to_string(size));
      End now = End::kNone;
      const auto make = [&] {
        testing::manual_seed(5);
        const auto halve = [&](WriterImpl& self, const Tensor&) {
          if (now == End::kNone) return;
          self.own[0].mul_(0.5);
          if (now == End::kSameLayer) throw std::runtime_error("the same layer");
        };
        const auto scale_gradients = [](WriterImpl& self, const Tensor& x) {
          return x.detach() + (x - x.detach()) * self.own[0][0].clone();
        };
        const auto fail = [&](const Tensor& x) {
          if (now == End::kLaterLayer) throw std::runtime_error("a later layer");
          if (now == End::kMemory) throw std::bad_alloc();
          return now == End::kCheckOfValues ? x / 0 : x * 1;
        };
        return nn::Sequential(
            nn::Linear(kWidth, kWidth),
            Writer(std::vector<Tensor>{torch::ones({size})}, halve, scale_gradients),
            layer<Tensor, Tensor>(fail), nn::Tanh());
      };
      nn::Sequential plain = make();
      GPipe pipe(make(), cpu_options({3, 1}).chunks(1).checkpoint(Checkpoint::kAlways));
      const Tensor x = torch::randn({4, kWidth});
      for (int call = 0; call < 3; ++call) {
        const Tensor expected = plain->forward(x);
        const Tensor output = pipe->forward(x);
        now = end;
        try {
          (void)plain->forward(x);
        } catch (const std::exception&) {
        }
        if (end == End::kCheckOfValues) {
          EXPECT_THROW(pipe->evaluate({x}, {x}, square_loss, StepOptions().check_finite(true)),
                       c10::ValueError);
        } else {
          EXPECT_THROW(pipe->forward(x), std::exception);
        }
        now = End::kNone;
        expected.sum().backward();
        output.sum().backward();
        EXPECT_THAT(pipe->buffers()[0], EqualsBitwise(plain->buffers()[0])) << call;
      }
      const auto parameters = pipe->named_parameters();
      for (const auto& item : plain->named_parameters()) {
        EXPECT_THAT(parameters.find(item.key())->grad(), EqualsBitwise(item.value().grad()))
            << item.key();
      }
    }
  }
}

// A layer changes its buffer in a call that the pipeline does not run, between a forward and its
// backward. The outputs do not depend on the buffer, but the gradients do, so they show which value
// the recompute has seen.
TEST(Recompute, BeginsWithWhatItsForwardSawWhoeverHasRunTheLayersSince) {
  struct Case {
    bool by_pipeline;
    Checkpoint mode;
    int64_t chunks;
  };
  for (const Case& now :
       {Case{true, Checkpoint::kAlways, 1}, Case{false, Checkpoint::kAlways, 1},
        Case{true, Checkpoint::kExceptLast, 2}, Case{false, Checkpoint::kExceptLast, 2}}) {
    for (const int64_t size : {1, 4000}) {
      SCOPED_TRACE((now.by_pipeline ? "another pipeline, " : "by hand, ") + std::to_string(size) +
                   ", chunks: " + std::to_string(now.chunks));
      bool halves = false;
      const auto make = [&] {
        testing::manual_seed(5);
        const auto halve = [&](WriterImpl& self, const Tensor&) {
          if (halves) self.own[0].mul_(0.5);
        };
        const auto scale_gradients = [](WriterImpl& self, const Tensor& x) {
          return x.detach() + (x - x.detach()) * self.own[0][0].clone();
        };
        return nn::Sequential(
            nn::Linear(kWidth, kWidth),
            Writer(std::vector<Tensor>{torch::ones({size})}, halve, scale_gradients), nn::Tanh());
      };
      nn::Sequential plain = make();
      nn::Sequential model = make();
      GPipe pipe(model, cpu_options({2, 1}).chunks(now.chunks).checkpoint(now.mode));
      GPipe other(model, cpu_options({1, 2}).chunks(1));
      const Tensor x = torch::randn({4, kWidth});
      for (int call = 0; call < 3; ++call) {
        std::vector<Tensor> outputs;
        for (const Tensor& each : x.chunk(now.chunks)) outputs.push_back(plain->forward(each));
        const Tensor output = pipe->forward(x);
        halves = true;
        (void)plain->forward(x);
        if (now.by_pipeline) {
          (void)other->evaluate({x}, {x}, square_loss);
        } else {
          (void)model->forward(x);
        }
        halves = false;
        // The plain model's backwards run as the pipeline's do: the last micro-batch first.
        for (size_t k = outputs.size(); k-- > 0;) outputs[k].sum().backward();
        output.sum().backward();
        EXPECT_THAT(pipe->buffers()[0], EqualsBitwise(plain->buffers()[0])) << call;
      }
      const auto parameters = pipe->named_parameters();
      for (const auto& item : plain->named_parameters()) {
        EXPECT_THAT(parameters.find(item.key())->grad(), EqualsBitwise(item.value().grad()))
            << item.key();
      }
    }
  }
}

// A buffer "num_batches_tracked" that is not a batch norm's counter is put back like any other
// buffer. Only a norm's own counter is left to the operators that count.
TEST(Recompute, ACounterNamedAsANormsCountsAsAnyBuffer) {
  struct CountingImpl : nn::Module {
    explicit CountingImpl(bool has_statistics)
        : linear(register_module("linear", nn::Linear(kWidth, kWidth))),
          count(register_buffer("num_batches_tracked", torch::zeros({}, at::kLong))) {
      if (has_statistics) register_buffer("running_mean", torch::zeros({kWidth}));
    }
    Tensor forward(const Tensor& x) {
      count += 1;
      const Tensor y = linear(x);
      return y.detach() + (y - y.detach()) * count.item<int64_t>();
    }
    nn::Linear linear;
    Tensor count;
  };
  for (const bool has_statistics : {false, true}) {
    const auto make = [&] {
      testing::manual_seed(5);
      return nn::Sequential(std::make_shared<CountingImpl>(has_statistics), nn::Tanh());
    };
    for (const char* const schedule : {"1f1b", "zb-h1", "gpipe"}) {
      SCOPED_TRACE(schedule);
      nn::Sequential plain = make();
      nn::Sequential module = make();
      const Tensor input = torch::randn({6, kWidth});
      const BackwardOrder order =
          std::string(schedule) == "gpipe" ? BackwardOrder::kDescending : BackwardOrder::kAscending;
      PlainModel(plain, 3).step({input}, {input}, square_loss, order);
      GPipe pipe(module, cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
      pipe->step({input}, {input}, square_loss, StepOptions().schedule(schedule_by_name(schedule)));
      EXPECT_THAT(module->buffers()[0], EqualsBitwise(plain->buffers()[0]));
      for (size_t k = 0; k < plain->parameters().size(); ++k) {
        EXPECT_THAT(module->parameters()[k].grad(), EqualsBitwise(plain->parameters()[k].grad()));
      }
    }
  }
}

// These buffers are tensors that an ordinary copy_() refuses to write to. Still they must be put
// back.
TEST(Recompute, PutsBackBuffersThatOnlyTheirLayerMayWrite) {
  enum class Kind : uint8_t { kExpanded, kExpandedView, kOfInferenceMode };
  for (const Kind kind : {Kind::kExpanded, Kind::kExpandedView, Kind::kOfInferenceMode}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto make = [&] {
      testing::manual_seed(5);
      const Tensor base = torch::ones({1});
      const auto count = [kind, base](WriterImpl& self, const Tensor&) {
        if (kind == Kind::kExpanded) {
          self.own[0].set_data((self.own[0].select(0, 0) + 1).expand({kWidth}));
        } else if (kind == Kind::kExpandedView) {
          Tensor(base).add_(1);
        } else {
          const c10::InferenceMode mode;
          self.own[0].add_(1);
        }
      };
      const auto scale_gradients = [](WriterImpl& self, const Tensor& x) {
        return x.detach() + (x - x.detach()) * self.own[0][0].item<float>();
      };
      Tensor buffer = base.expand({kWidth});
      if (kind == Kind::kOfInferenceMode) {
        const c10::InferenceMode mode;
        buffer = torch::ones({kWidth});
      }
      return nn::Sequential(Writer(std::vector<Tensor>{buffer}, count, scale_gradients),
                            nn::Tanh());
    };
    nn::Sequential plain = make();
    nn::Sequential module = make();
    const Tensor input = torch::randn({6, kWidth});
    GPipe pipe(module, cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
    for (int step = 0; step < 2; ++step) {
      PlainModel(plain, 3).step({input}, {input}, square_loss, BackwardOrder::kAscending);
      pipe->step({input}, {input}, square_loss);
    }
    EXPECT_THAT(module->buffers()[0].clone(), EqualsBitwise(plain->buffers()[0].clone()));
    for (size_t k = 0; k < plain->parameters().size(); ++k) {
      EXPECT_THAT(module->parameters()[k].grad(), EqualsBitwise(plain->parameters()[k].grad()));
    }
  }
}

TEST(Recompute, ThatFailsLeavesBuffersAsTheyWere) {
  bool fails = false;
  const auto halve = [&](WriterImpl& self, const Tensor&) {
    if (fails) self.own[0].mul_(0.5);
  };
  const auto fail = [&](const Tensor& x) {
    if (fails) throw std::runtime_error("no memory");
    return x * 1;
  };
  GPipe pipe(nn::Sequential(Writer(std::vector<Tensor>{torch::ones({1})}, halve, as_it_is),
                            layer<Tensor, Tensor>(fail)),
             cpu_options({2}).chunks(2).checkpoint(Checkpoint::kAlways));
  const Tensor output = pipe->forward(torch::randn({4, kWidth}));
  fails = true;
  EXPECT_THROW(output.sum().backward(), std::exception);
  EXPECT_EQ(pipe->buffers()[0].item<double>(), 1);
}

// A large buffer that no forward has changed for long is not copied any more. If a recompute that
// fails changes it, the error must say so.
TEST(Recompute, ThatFailsNamesABufferThatItCannotPutBack) {
  bool fails = false;
  const auto halve = [&](WriterImpl& self, const Tensor&) {
    if (fails) self.own[0].mul_(0.5);
  };
  const auto fail = [&](const Tensor& x) {
    if (fails) throw std::runtime_error("no memory");
    return x * 1;
  };
  GPipe pipe(nn::Sequential(Writer(std::vector<Tensor>{torch::ones({4000})}, halve, as_it_is),
                            layer<Tensor, Tensor>(fail)),
             cpu_options({2}).chunks(4).checkpoint(Checkpoint::kAlways));
  Tensor output;
  for (int k = 0; k < 20; ++k) output = pipe->forward(torch::randn({4, kWidth}));
  fails = true;
  EXPECT_THAT([&] { output.sum().backward(); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("no memory"), HasSubstr("had changed the buffer '0.inner.b0'"),
                        HasSubstr("former value is not known"))));
}

// A graph that waits (for its backward or for its weights' half) must find the buffers that it has
// saved as they were, although the forwards of other micro-batches have changed them.
TEST(Recompute, AGraphThatWaitsFindsTheBuffersThatItHasSaved) {
  struct Case {
    const char* what;
    std::vector<Tensor> buffers;
    WriterImpl::Write write;
  };
  const std::vector<Case> cases = {
      {"in place",
       {torch::ones({1})},
       [](WriterImpl& self, const Tensor& x) { self.own[0].mul_(0.9).add_(x.abs().mean(), 0.1); }},
      {"large",
       {torch::ones({2000, 1})},
       [](WriterImpl& self, const Tensor& x) { self.own[0].mul_(0.9).add_(x.abs().mean(), 0.1); }},
      {"other memory",
       {torch::ones({1})},
       [](WriterImpl& self, const Tensor& x) {
         self.own[0].set_data(self.own[0] * 0.9 + x.abs().mean() * 0.1);
       }},
      {"rewritten",
       {torch::ones({2, 1})},
       [](WriterImpl& self, const Tensor&) { self.own[0].copy_(self.own[0].clone()); }},
      {"two, of which one is a view of the other",
       {torch::ones({2, 1})},
       [](WriterImpl& self, const Tensor& x) {
         if (self.own.size() == 1) {
           self.own.push_back(self.register_buffer("view", self.own[0].select(0, 1)));
         }
         self.own[1].add_(x.abs().mean());
         self.own[0].mul_(0.9);
       }},
  };
  const auto divide = [](WriterImpl& self, const Tensor& x) {
    return x / self.own[0].select(0, 0) + (x / self.own.back().sum()).tanh();
  };
  for (const Case& now : cases) {
    const auto make = [&] {
      testing::manual_seed(5);
      const auto writer = [&] {
        std::vector<Tensor> buffers;
        for (const Tensor& buffer : now.buffers) buffers.push_back(buffer.clone());
        return Writer(std::move(buffers), now.write, divide);
      };
      return nn::Sequential(nn::Linear(kWidth, kWidth), writer(), writer());
    };
    const Tensor x = torch::randn({6, kWidth});
    for (const std::vector<int64_t>& balance : std::vector<std::vector<int64_t>>{{3}, {2, 1}}) {
      for (const Checkpoint mode :
           {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
        for (const char* const schedule : {"zb-h1", "zb-h2", "1f1b", "fill-drain"}) {
          SCOPED_TRACE(std::string(now.what) + ", " + std::to_string(balance.size()) +
                       " stages, mode " + std::to_string(static_cast<int>(mode)) + ", " + schedule);
          nn::Sequential plain = make();
          nn::Sequential module = make();
          GPipe pipe(module, cpu_options(balance).chunks(3).checkpoint(mode));
          for (int step = 0; step < 2; ++step) {
            // The plain loop is written out here, because PlainModel would run all forwards first.
            for (const Tensor& rows : x.chunk(3)) {
              square_loss({plain->forward(rows)}, {rows}).backward(torch::tensor(1.0F / 3));
            }
            ASSERT_NO_THROW(pipe->step({x}, {x}, square_loss,
                                       StepOptions().schedule(schedule_by_name(schedule))));
          }
          for (size_t k = 0; k < plain->buffers().size(); ++k) {
            EXPECT_THAT(module->buffers()[k], EqualsBitwise(plain->buffers()[k]));
          }
          for (size_t k = 0; k < plain->parameters().size(); ++k) {
            EXPECT_THAT(module->parameters()[k].grad(),
                        EqualsBitwise(plain->parameters()[k].grad()));
          }
        }
      }
    }
  }
}

// A layer keeps its last output, and with it the graph, until the next forward has made another
// one: so a forward that saves a buffer adds no owner to it.
TEST(Recompute, AGraphThatTakesThePlaceOfTheFormerOneFindsItsBuffersToo) {
  at::set_num_threads(1);
  struct Case {
    const char* what;
    int64_t size;
    bool leaves_alone;  // some forwards leave the buffer alone
    WriterImpl::Write write;
  };
  const auto move = [](WriterImpl& self, const Tensor& x) {
    self.own[0].mul_(0.9).add_(x.abs().mean(), 0.1);
  };
  // The memory of the former value is free when the next one is made.
  const auto replace = [](WriterImpl& self, const Tensor& x) {
    self.own[0].set_data(self.own[0].detach().clone().mul_(0.9).add_(x.abs().mean(), 0.1));
  };
  const auto move_sometimes = [move](WriterImpl& self, const Tensor& x) {
    self.own[1].add_(1);
    if (self.own[1].item<int64_t>() % 3 != 1) move(self, x);
  };
  const std::vector<Case> cases = {
      {"in place", 1, false, move},           {"large", 2000, false, move},
      {"replaced", 1, false, replace},        {"large and replaced", 100000, false, replace},
      {"sometimes", 1, true, move_sometimes}, {"large, sometimes", 2000, true, move_sometimes}};
  for (const Case& now : cases) {
    for (const bool by_hook : {false, true}) {
      for (const bool keeps : {false, true}) {
        const auto make = [&](bool copies) {
          testing::manual_seed(5);
          const auto use = [=, last = std::make_shared<Tensor>()](WriterImpl& self,
                                                                  const Tensor& x) {
            const Tensor seen = copies ? self.own[0].clone() : self.own[0];
            Tensor y;
            if (by_hook) {  // which no version counter guards
              y = x * 1;
              if (y.requires_grad()) {
                y.register_hook([seen](const Tensor& g) { return g / seen.select(0, 0); });
              }
            } else {
              y = x / seen.select(0, 0);
            }
            if (keeps) *last = y;
            return y;
          };
          return nn::Sequential(
              nn::Linear(kWidth, kWidth),
              Writer(std::vector<Tensor>{torch::ones({now.size, 1}), torch::zeros({}, at::kLong)},
                     now.write, use),
              nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
        };
        for (const Checkpoint mode :
             {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
          if (now.leaves_alone && mode == Checkpoint::kNever) continue;  // an error at first
          for (const char* const schedule : {"1f1b", "gpipe", "zb-h1"}) {
            SCOPED_TRACE(std::string(now.what) + (by_hook ? ", hook" : "") +
                         (keeps ? ", keeps, " : ", ") + to_text(mode) + ", " + schedule);
            nn::Sequential plain = make(/*copies=*/true);
            nn::Sequential module = make(/*copies=*/false);
            const BackwardOrder order = std::string(schedule) == "gpipe"
                                            ? BackwardOrder::kDescending
                                            : BackwardOrder::kAscending;
            GPipe pipe(module, cpu_options({2, 1, 1}).chunks(4).checkpoint(mode));
            for (int step = 0; step < 3; ++step) {
              const Tensor x = torch::randn({8, kWidth});
              PlainModel(plain, 4).step({x}, {x}, square_loss, order);
              EXPECT_NO_THROW(pipe->step({x}, {x}, square_loss,
                                         StepOptions().schedule(schedule_by_name(schedule))));
            }
            EXPECT_THAT(module->buffers()[0], EqualsBitwise(plain->buffers()[0]));
            for (size_t k = 0; k < plain->parameters().size(); ++k) {
              EXPECT_THAT(module->parameters()[k].grad(),
                          EqualsBitwise(plain->parameters()[k].grad()));
            }
          }
        }
      }
    }
  }
}

// Nothing tells of such a buffer: no forward had changed it when the graph was made.
TEST(Recompute, NamesABufferThatAWaitingGraphNeedsAndALaterForwardIsTheFirstToChange) {
  int forwards = 0;
  GPipe pipe(nn::Sequential(Writer(
                                std::vector<Tensor>{torch::ones({1})},
                                [&](WriterImpl& self, const Tensor&) {
                                  if (++forwards > 1) self.own[0].mul_(0.9);
                                },
                                [](WriterImpl& self, const Tensor& x) { return x / self.own[0]; }),
                            nn::Tanh()),
             cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kNever));
  const Tensor x = torch::randn({6, kWidth});
  const auto step = [&] { (void)pipe->step({x}, {x}, square_loss); };
  EXPECT_THAT(step, ThrowsMessage<c10::Error>(AllOf(HasSubstr("modified by an inplace operation"),
                                                    HasSubstr("'0.inner.b0'"), HasSubstr("clone()"),
                                                    HasSubstr("Checkpoint::kAlways"))));
  EXPECT_NO_THROW(step());
}

struct TwoStages {
  const char* what;
  GPipeOptions options;
  ScheduleGenerator schedule;
};

// Two stages, each on a worker of its own or both on the caller's thread.
std::vector<TwoStages> two_stages() {
  NamedScheduleOptions interleaved;
  interleaved.stages_per_worker = 2;
  std::vector<TwoStages> all;
  all.push_back({"two workers", cpu_options({1, 1}), schedule_by_name("1f1b")});
  all.push_back({"the caller's thread", GPipeOptions({1, 1}).placement(Placement::loop(1, 2)),
                 schedule_by_name("interleaved", interleaved)});
  return all;
}

TEST(Recompute, NamesAWrittenBufferThatTwoStagesHave) {
  enum class Writes : uint8_t { kBoth, kFirst, kSecond };
  for (const TwoStages& stages : two_stages()) {
    for (const Checkpoint mode :
         {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
      for (const int64_t size : {int64_t{1}, int64_t{2000}}) {
        for (const Writes writes : {Writes::kBoth, Writes::kFirst, Writes::kSecond}) {
          for (const bool trains : {true, false}) {
            SCOPED_TRACE(std::string(stages.what) + ", " + to_text(mode) + ", " +
                         std::to_string(size) + ", " + std::to_string(static_cast<int>(writes)) +
                         (trains ? ", training" : ", evaluation"));
            const Tensor shared = torch::ones({size, 1});
            const auto make = [&](bool is_written) {
              const auto write = [is_written](WriterImpl& self, const Tensor& x) {
                if (is_written) self.own[0].add_(x.abs().mean());
              };
              return Writer(std::vector<Tensor>{shared}, write,
                            [](WriterImpl& self, Tensor x) { return x / self.own[0][0].clone(); });
            };
            GPipeOptions options = stages.options;
            GPipe pipe(
                nn::Sequential(make(writes != Writes::kSecond), make(writes != Writes::kFirst)),
                options.chunks(3).checkpoint(mode));
            const Tensor x = torch::randn({6, kWidth});
            const StepOptions schedule = StepOptions().schedule(stages.schedule);
            EXPECT_THAT(([&] {
                          if (trains) pipe->step({x}, {x}, square_loss, schedule);
                          if (!trains) (void)pipe->evaluate({x}, {x}, square_loss);
                        }),
                        ThrowsMessage<c10::Error>(AllOf(HasSubstr("inner.b0"),
                                                        HasSubstr("of another stage"),
                                                        HasSubstr("a buffer of its own"))));
          }
        }
      }
    }
  }
}

// Such a buffer may be a table of rotary embeddings or a mask that each forward makes anew.
TEST(Recompute, ABufferThatTwoStagesHaveMayBeWrittenWithTheValueThatItHas) {
  for (const TwoStages& stages : two_stages()) {
    for (const Checkpoint mode :
         {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
      for (const int64_t size : {int64_t{1}, int64_t{2000}}) {
        SCOPED_TRACE(std::string(stages.what) + ", " + to_text(mode) + ", " + std::to_string(size));
        // The second layer writes what the first one's graph has saved. LibTorch refuses that in
        // the plain model, and in a pipeline where another thread may write at any time.
        const bool may_save = stages.what != std::string("two workers");
        const auto make = [&](bool copies) {
          testing::manual_seed(5);
          const Tensor shared = torch::full({size, 1}, 2.0);
          const auto one = [&] {
            return Writer(
                std::vector<Tensor>{shared},
                [size](WriterImpl& self, const Tensor&) {
                  self.own[0].copy_(torch::full({size, 1}, 2.0));
                },
                [copies](WriterImpl& self, const Tensor& x) {
                  const Tensor first = self.own[0].select(0, 0);
                  return x / (copies ? first.clone() : first);
                });
          };
          return nn::Sequential(one(), one());
        };
        nn::Sequential plain = make(/*copies=*/true);
        nn::Sequential module = make(/*copies=*/!may_save);
        GPipeOptions options = stages.options;
        GPipe pipe(module, options.chunks(3).checkpoint(mode));
        for (int step = 0; step < 2; ++step) {
          const Tensor x = torch::randn({6, kWidth});
          PlainModel(plain, 3).step({x}, {x}, square_loss, BackwardOrder::kAscending);
          ASSERT_NO_THROW(
              pipe->step({x}, {x}, square_loss, StepOptions().schedule(stages.schedule)));
          (void)pipe->evaluate({x}, {x}, square_loss);
        }
        for (size_t k = 0; k < plain->parameters().size(); ++k) {
          EXPECT_THAT(module->parameters()[k].grad(), EqualsBitwise(plain->parameters()[k].grad()));
        }
      }
    }
  }
}

TEST(Recompute, ABufferThatAHookCountsInStaysTheHooks) {
  Writer writer(
      std::vector<Tensor>{torch::zeros({}, at::kLong)}, [](WriterImpl&, const Tensor&) {},
      [](WriterImpl& self, const Tensor& x) {
        x.register_hook([buffer = self.own[0]](const Tensor&) { buffer.add_(1); });
        return x;
      });
  GPipe pipe(nn::Sequential(writer, nn::Tanh()),
             cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kAlways));
  pipe->step({torch::randn({6, kWidth})}, {torch::randn({6, kWidth})}, square_loss);
  EXPECT_EQ(writer->own[0].item<int64_t>(), 3);
}

// The outputs of a stage may have any type and any layout in memory. In each of them the check must
// find other values.
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

TEST(Recompute, AModuleRegisteredInTheFirstForwardIsNotAChange) {
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

// --- Changes between a forward and its backward.

// The graph of a checkpointed cell's first pass must be gone before the cell's loss runs.
TEST(Recompute, HoldsNothingOfTheFirstPassWhileTheLossRuns) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    c10::weak_intrusive_ptr<c10::StorageImpl> saved(
        torch::ones({1}).storage().getWeakStorageImpl());
    GPipe pipe(
        nn::Sequential(nn::Linear(4, 4), testing::layer<at::Tensor, at::Tensor>([&](at::Tensor x) {
                         const at::Tensor middle = x * 2;  // the backward of the square keeps it
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
    // The pipeline must remain usable.
    pipe->train();
    linear->weight.set_requires_grad(true);
    pipe->forward(torch::randn({4, kWidth})).sum().backward();
    EXPECT_TRUE(linear->weight.grad().defined());
  }
  // Without a recompute, autograd itself detects the changes that matter, so this change is no
  // error.
  nn::Linear linear(kWidth, kWidth);
  GPipe pipe(nn::Sequential(linear, nn::Tanh()),
             cpu_options({1, 1}).checkpoint(Checkpoint::kNever));
  const Tensor output = pipe->forward(torch::randn({4, kWidth}));
  {
    torch::NoGradGuard no_grad;
    linear->bias.add_(1);  // no backward needs the bias
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
