// Tests hooks and custom functions that write into the gradients that they are given, under
// schedules with split backwards. The change may reach a weight's gradient that is still to be
// computed, or another stage, only if it does so in the plain model.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/skippable.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using skip::testing::pop_layer;
using testing::cpu_options;
using testing::EqualsBitwise;
using testing::PlainModel;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 4;
constexpr int64_t kRows = 6;

Tensor tripled(Tensor x) {
  if (x.requires_grad()) x.register_hook([](const Tensor& gradient) { gradient.mul_(3); });
  return x;
}

struct TripleInPlace : torch::autograd::Function<TripleInPlace> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    gradients[0].mul_(3);
    return gradients;
  }
};

// A layer with two square parameters.
struct BodyImpl : nn::Module {
  using Function = std::function<Tensor(Tensor x, Tensor w, Tensor p)>;
  explicit BodyImpl(Function body) : body(std::move(body)) {
    w = register_parameter("w", torch::randn({kWidth, kWidth}));
    p = register_parameter("p", torch::randn({kWidth, kWidth}));
  }
  Tensor forward(Tensor x) { return body(std::move(x), w, p); }
  Function body;
  Tensor w, p;
};
TORCH_MODULE(Body);

// A layer that passes its input on, and stashes a function of it.
struct StashImpl : nn::Module, skip::Skippable {
  StashImpl(std::string name, std::function<Tensor(Tensor)> function)
      : Skippable({name}, {}), name(std::move(name)), function(std::move(function)) {}
  Tensor forward(Tensor x) {
    stash(name, function(x));
    return x;
  }
  std::string name;
  std::function<Tensor(Tensor)> function;
};
TORCH_MODULE(Stash);

Tensor rows_times(Tensor x, const Tensor& p) { return torch::ones_like(x).matmul(p); }

Tensor as_it_is(Tensor x) { return x.view_as(x); }

using Models = std::map<std::string, std::function<nn::Sequential()>>;

// Models of four layers each.
const Models& models() {
  const auto product = [](Tensor x, Tensor w, Tensor) { return x.matmul(w).tanh(); };
  static const Models all = {
      {"hook beside a product",
       [=] {
         const auto body = [](Tensor x, Tensor w, Tensor p) {
           const Tensor y = tripled(x.matmul(w));
           return y + rows_times(x, p);
         };
         return nn::Sequential(Body(body), Body(body), Body(product), Body(body));
       }},
      {"hook before a product",
       [=] {
         const auto body = [](Tensor x, Tensor w, Tensor p) {
           const Tensor h = rows_times(x, p);
           return tripled(x.matmul(w)) + h;
         };
         return nn::Sequential(Body(body), Body(body), Body(product), Body(body));
       }},
      {"custom functions first and last",
       [=] {
         const auto first = [](Tensor x, Tensor w, Tensor p) {
           return TripleInPlace::apply(x.matmul(w)) + rows_times(x, p);
         };
         const auto last = [](Tensor x, Tensor w, Tensor p) {
           return TripleInPlace::apply(x.matmul(w) + rows_times(x, p));
         };
         return nn::Sequential(Body(first), Body(product), Body(product), Body(last));
       }},
      {"weights used twice",
       [=] {
         const auto body = [](Tensor x, Tensor w, Tensor p) {
           const Tensor y = tripled(x.matmul(w) + rows_times(x, p));
           return y + rows_times(x, w) + TripleInPlace::apply(x.matmul(p));
         };
         return nn::Sequential(Body(body), Body(body), Body(product), Body(body));
       }},
      {"hooks on inputs",
       [=] {
         const auto body = [](Tensor x, Tensor w, Tensor p) {
           return tripled(x).matmul(w) + x + rows_times(x, p);
         };
         return nn::Sequential(Body(product), Body(body), Body(body), Body(body));
       }},
      {"hook on a skip",
       [=] {
         const auto skip = [](Tensor x) { return tripled(x.view_as(x)); };
         // The gradient of stage 1's product is the very tensor that the skip takes to stage 0.
         const auto alone = [](Tensor x, Tensor w, Tensor) { return x.matmul(w); };
         return nn::Sequential(Body(product), Stash("s", skip), Body(alone), pop_layer({"s"}));
       }},
      {"hook on an activation that is a skip, too",
       [=] {
         const auto sum = [](Tensor x, Tensor w, Tensor p) {
           return TripleInPlace::apply(x.matmul(w)) + rows_times(x, p);
         };
         return nn::Sequential(Body(sum), Stash("s", as_it_is), Body(product), pop_layer({"s"}));
       }},
      {"hook in a stage between",
       [=] {
         const auto hooked = [](Tensor x, Tensor w, Tensor p) {
           const Tensor y = tripled(x.view_as(x));
           return y + rows_times(x, p) + rows_times(x, w);
         };
         return nn::Sequential(Body(product), Stash("s", as_it_is), Body(hooked), pop_layer({"s"}));
       }},
      {"two skips",
       [=] {
         struct BothImpl : nn::Module, skip::Skippable {
           BothImpl() : Skippable({"a", "b"}, {}) {}
           Tensor forward(Tensor x) {
             stash("a", tripled(x.view_as(x)));
             stash("b", TripleInPlace::apply(x));
             return x * 1;
           }
         };
         struct SumImpl : nn::Module, skip::Skippable {
           SumImpl() : Skippable({}, {"a", "b"}) {
             w = register_parameter("w", torch::randn({kWidth, kWidth}));
           }
           Tensor forward(Tensor x) {
             const Tensor a = pop("a");
             return x + a + pop("b") + rows_times(x, w);
           }
           Tensor w;
         };
         return nn::Sequential(Body(product), std::make_shared<BothImpl>(), Body(product),
                               std::make_shared<SumImpl>());
       }},
  };
  return all;
}

Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return (outputs[0] * targets[0]).sum();
}

class WritingHooks : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  nn::Sequential model() const {
    testing::manual_seed(1);
    return models().at(GetParam())();
  }

  // Compares steps of a pipeline and of the plain model, with and without a gradient of the input.
  void expect_as_plain(const std::vector<int64_t>& balance, Checkpoint mode,
                       const Schedule& schedule) const {
    for (const bool wanted : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) + "\n" +
                   schedule.to_text() + (wanted ? "" : "no gradient of the input"));
      const int64_t chunks = schedule.micro_batches();
      nn::Sequential plain_module = model();
      nn::Sequential pipe_module = model();
      PlainModel plain(plain_module, chunks);
      GPipe pipe(pipe_module, cpu_options(balance).chunks(chunks).checkpoint(mode));
      testing::manual_seed(2);
      const Tensor target = torch::randn({kRows, kWidth});
      const Tensor plain_input = torch::randn({kRows, kWidth}).requires_grad_(wanted);
      const Tensor pipe_input = plain_input.detach().clone().requires_grad_(wanted);
      for (int call = 0; call < 2; ++call) {
        plain.step({plain_input}, {target}, loss_of, testing::BackwardOrder::kAscending);
        pipe->step({pipe_input}, {target}, loss_of, StepOptions().schedule(schedule));
      }
      if (wanted) {
        EXPECT_THAT(pipe_input.grad(), EqualsBitwise(plain_input.grad()));
      }
      const auto have = pipe->named_parameters();
      for (const auto& want : plain_module->named_parameters()) {
        const Tensor gradient = have[want.key()].grad();
        ASSERT_EQ(gradient.defined(), want.value().grad().defined()) << want.key();
        if (gradient.defined()) {
          EXPECT_THAT(gradient, EqualsBitwise(want.value().grad())) << want.key();
        }
      }
    }
  }
};

TEST_P(WritingHooks, UnderSplitBackwardsOfTwoStages) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    expect_as_plain({4}, mode, Schedule::from_text(R"(
stages 1
micro_batches 2
worker 0: F0.0 F0.1 I0.0 I0.1 W0.0 W0.1
)"));
    expect_as_plain({2, 2}, mode, Schedule::from_text(R"(
stages 2
micro_batches 2
worker 0: F0.0 F0.1 I0.0 W0.0 I0.1 W0.1
worker 1: F1.0 I1.0 F1.1 I1.1 W1.0 W1.1
)"));
  }
}

// When the weights' gradients are computed, the stages before have already run their backward,
// which may have written into the gradients.
TEST_P(WritingHooks, WhereTheWeightsWaitForTheStagesBefore) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    for (const auto& balance : {std::vector<int64_t>{2, 1, 1}, {1, 2, 1}, {1, 1, 2}}) {
      expect_as_plain(balance, mode, Schedule::from_text(R"(
stages 3
micro_batches 1
worker 0: F0.0 F1.0 F2.0 I2.0 I1.0 I0.0 W0.0 W1.0 W2.0
)"));
      expect_as_plain(balance, mode, Schedule::from_text(R"(
stages 3
micro_batches 1
worker 0: F0.0 I0.0 W0.0
worker 1: F1.0 F2.0 I2.0 I1.0 W1.0 W2.0
)"));
    }
  }
}

TEST_P(WritingHooks, UnderRandomTables) {
  std::mt19937_64 random = testing::test_random();
  for (int k = 0; k < 10; ++k) {
    for (const auto& balance :
         {std::vector<int64_t>{4}, {3, 1}, {2, 1, 1}, {1, 1, 2}, {1, 1, 1, 1}}) {
      expect_as_plain(balance, Checkpoint::kNever,
                      testing::random_schedule(static_cast<int64_t>(balance.size()), 3,
                                               testing::MicroBatchOrder::kAscending, random));
    }
  }
}

// The rows of the output's gradient share memory, because a sum expands one row. A hook must not
// change the gradient of another micro-batch.
TEST(WritingHooksOfOneRow, ChangeTheGradientOfTheirMicroBatchAlone) {
  at::set_num_threads(1);
  auto gradient_of = [](bool in_place) {
    testing::manual_seed(1);
    const Body layer([in_place](Tensor x, const Tensor& w, const Tensor& p) {
      const Tensor y = x.matmul(w);
      y.register_hook(
          [in_place](Tensor gradient) { return in_place ? gradient.mul_(3) : gradient * 3; });
      return y + rows_times(x, p);
    });
    GPipe pipe(nn::Sequential(layer), cpu_options({1}).chunks(kRows));
    const Tensor weights = torch::randn({kWidth});
    (pipe->forward(torch::randn({kRows, kWidth})).sum(0) * weights).sum().backward();
    return torch::cat({layer->w.grad(), layer->p.grad()});
  };
  EXPECT_THAT(gradient_of(true), EqualsBitwise(gradient_of(false)));
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [name, make] : models()) result.push_back(name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Models, WritingHooks, ::testing::ValuesIn(names()),
                         [](const auto& info) { return "Model" + std::to_string(info.index); });

}  // namespace
}  // namespace gpipe
