// Tests skips inside a pipeline: they must give the plain model's numbers under every split and
// take direct routes. No tensor may be held longer than needed, and errors must reach the caller.
#include <ATen/Parallel.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/skip.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using skip::testing::Nest;
using skip::testing::Pair;
using skip::testing::plain_layer;
using skip::testing::pop_layer;
using skip::testing::SkipLayer;
using skip::testing::stash_layer;
using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::PlainModel;
using ::testing::ThrowsMessage;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

GPipeOptions options(const std::vector<int64_t>& balance, int64_t chunks, Checkpoint mode) {
  return GPipeOptions(balance)
      .devices({balance.size(), c10::Device(c10::kCPU)})
      .chunks(chunks)
      .checkpoint(mode);
}

at::Tensor square(const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); }

enum class Gradients { kBitwise, kUpToTheOrderOfSums };

// Compares the model with the plain model, bit for bit, for every split into up to three
// partitions, every mode and every entry.
void expect_as_plain(const std::function<nn::Sequential()>& make, const at::Tensor& input,
                     Gradients gradients = Gradients::kBitwise) {
  auto expect_same = [&](const at::Tensor& a, const at::Tensor& b) {
    if (gradients == Gradients::kBitwise) {
      EXPECT_THAT(testing::on_host(a), EqualsBitwise(b));
    } else {
      EXPECT_TRUE(torch::allclose(testing::on_host(a), b, /*rtol=*/1e-5, /*atol=*/1e-6));
    }
  };
  at::set_num_threads(1);  // results are bitwise equal only for equal numbers of threads
  const auto layers = static_cast<int64_t>(make()->size());
  constexpr int64_t kChunks = 3;
  for (int64_t partitions = 1; partitions <= std::min<int64_t>(layers, 3); ++partitions) {
    for (const std::vector<int64_t>& balance : testing::all_balances(layers, partitions)) {
      for (Checkpoint mode : kModes) {
        for (const bool step : {false, true}) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) +
                       (step ? " step" : " forward"));
          auto plain_module = make();
          auto pipe_module = make();
          PlainModel plain(plain_module, kChunks);
          GPipe pipe(pipe_module,
                     options(balance, kChunks, mode).devices(testing::devices(partitions)));
          const at::Tensor plain_input = input.detach().clone().requires_grad_();
          const at::Tensor pipe_input = testing::copy_on(testing::device(), input).requires_grad_();
          Tensors expected, actual;
          if (step) {
            expected =
                plain.step({plain_input}, {}, square, testing::BackwardOrder::kAscending).outputs;
            actual = pipe->step({pipe_input}, {}, square, StepOptions().keep_outputs(true)).outputs;
          } else {
            expected = plain.forward_backward({plain_input}, {}, square).outputs;
            actual = {pipe->forward(pipe_input)};
            square(actual, {}).backward();
          }
          EXPECT_THAT(testing::on_host(actual[0]), EqualsBitwise(expected[0]));
          expect_same(pipe_input.grad(), plain_input.grad());
          const auto parameters = plain_module->parameters();
          for (size_t k = 0; k < parameters.size(); ++k) {
            const at::Tensor want = parameters[k].grad();
            const at::Tensor have = pipe->parameters()[k].grad();
            ASSERT_EQ(want.defined(), have.defined());
            if (want.defined()) expect_same(have, want);
          }
        }
      }
    }
  }
}

TEST(SkipPipeline, ConvolutionsWithASkipEqualThePlainModel) {
  testing::manual_seed(1);
  const at::Tensor input = torch::randn({6, 2, 8, 8});
  expect_as_plain(testing::convolutions_with_a_skip, input);
}

TEST(SkipPipeline, NestedSkippableLayersEqualThePlainModel) {
  testing::manual_seed(1);
  expect_as_plain(
      [] {
        testing::manual_seed(2);
        return nn::Sequential(Nest(nn::Linear(4, 4), stash_layer({"a"})), nn::Linear(4, 4),
                              Pair(stash_layer({"b"}), pop_layer({"a"})),
                              Nest(nn::Linear(4, 4), Nest(pop_layer({"b"}), nn::Linear(4, 4))));
      },
      torch::randn({6, 4}));
}

TEST(SkipPipeline, DefaultAndOwnNamespacesMayBeMixed) {
  testing::manual_seed(1);
  expect_as_plain(
      [] {
        testing::manual_seed(2);
        const skip::Namespace own;
        return nn::Sequential(stash_layer({"skip"}), nn::Linear(4, 4),
                              isolate(stash_layer({"skip"}), own), nn::Linear(4, 4),
                              pop_layer({"skip"}), isolate(pop_layer({"skip"}), own));
      },
      torch::randn({6, 4}));
}

// The plain model adds up a tensor's gradients one after another, from its last use to its first.
// If a tensor leaves a stage by several routes, and the receiving stage uses one of them several
// times, that stage's sum is made first. So the same gradients are added up in another order.
TEST(SkipPipeline, ATensorThatGoesSeveralWaysIsExactUpToTheOrderOfSums) {
  testing::manual_seed(1);
  expect_as_plain(
      [] {
        testing::manual_seed(2);
        const skip::Namespace own;
        return nn::Sequential(nn::Linear(4, 4), stash_layer({"skip"}),
                              isolate(stash_layer({"skip"}), own), nn::Linear(4, 4),
                              pop_layer({"skip"}), isolate(pop_layer({"skip"}), own));
      },
      torch::randn({6, 4}), Gradients::kUpToTheOrderOfSums);
}

// A layer that passes on three views of a tensor and then changes the tensor. Autograd makes the
// views' nodes anew at their next use, and the order in which it does so decides the order of the
// sums.
struct StaleViewsImpl : nn::Module, skip::Skippable {
  StaleViewsImpl()
      : Skippable({"a", "b"}, {}), linear(register_module("linear", nn::Linear(4, 4))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor h = linear->forward(x);
    const at::Tensor on = h.view({-1, 2, 2}), a = h.view({-1, 2, 2}), b = h.view({-1, 2, 2});
    h.mul_(2);
    stash("a", a);
    stash("b", b);
    return on;
  }
  nn::Linear linear;
};
TORCH_MODULE(StaleViews);

TEST(SkipPipeline, ViewsOfATensorThatWasChangedEqualThePlainModel) {
  testing::manual_seed(1);
  const auto scaled = [](double by) {
    return testing::layer<at::Tensor, at::Tensor>([by](at::Tensor x) { return x * by; });
  };
  expect_as_plain(
      [&] {
        testing::manual_seed(2);
        return nn::Sequential(StaleViews(), scaled(1.1), pop_layer({"a"}), scaled(1.3),
                              pop_layer({"b"}), scaled(1.7));
      },
      torch::randn({6, 4}));
}

TEST(SkipPipeline, APoppedTensorMayBeLeftUnused) {
  testing::manual_seed(1);
  struct IgnoreImpl : nn::Module, skip::Skippable {
    IgnoreImpl() : Skippable({}, {"skip"}) {}
    torch::Tensor forward(torch::Tensor x) {
      pop("skip");
      return x;
    }
  };
  expect_as_plain(
      [] {
        testing::manual_seed(2);
        return nn::Sequential(nn::Linear(4, 4), stash_layer({"skip"}), nn::Linear(4, 4),
                              std::make_shared<IgnoreImpl>(), nn::Linear(4, 4));
      },
      torch::randn({6, 4}));
}

TEST(SkipPipeline, ASkipMayBeAnInteger) {
  testing::manual_seed(1);
  struct ChooseImpl : nn::Module, skip::Skippable {
    ChooseImpl() : Skippable({"row"}, {}) {}
    torch::Tensor forward(torch::Tensor x) {
      stash("row", x.argmax(1));
      return x;
    }
  };
  struct TakeImpl : nn::Module, skip::Skippable {
    TakeImpl() : Skippable({}, {"row"}) {}
    torch::Tensor forward(torch::Tensor x) { return x.gather(1, pop("row").unsqueeze(1)); }
  };
  expect_as_plain(
      [] {
        testing::manual_seed(2);
        return nn::Sequential(nn::Linear(4, 4), std::make_shared<ChooseImpl>(), nn::Linear(4, 4),
                              std::make_shared<TakeImpl>());
      },
      torch::randn({6, 4}));
}

struct StashNothingImpl : nn::Module, skip::Skippable {
  StashNothingImpl() : Skippable({"none"}, {}) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("none", torch::Tensor());
    return x;
  }
};
TORCH_MODULE(StashNothing);

struct PopNothingImpl : nn::Module, skip::Skippable {
  PopNothingImpl() : Skippable({}, {"none"}) {}
  torch::Tensor forward(torch::Tensor x) {
    EXPECT_FALSE(pop("none").defined());
    return x;
  }
};
TORCH_MODULE(PopNothing);

TEST(SkipPipeline, AnUndefinedTensorArrivesAsOne) {
  for (Checkpoint mode : kModes) {
    for (const std::vector<int64_t>& balance : {std::vector<int64_t>{2}, {1, 1}}) {
      GPipe pipe(nn::Sequential(StashNothing(), PopNothing()), options(balance, 5, mode));
      const at::Tensor x = torch::rand({10, 3}).requires_grad_();
      pipe->forward(x).sum().backward();
      EXPECT_THAT(x.grad(), EqualsBitwise(torch::ones({10, 3})));
      pipe->step({x}, {}, [](const Tensors& o, const Tensors&) { return o[0].sum(); });
    }
  }
}

// Weak references to the tensors that were stashed for each micro-batch. The key is the value of
// the micro-batch's rows.
struct Stashed {
  std::mutex mutex;
  std::map<double, std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>> storages;
  int64_t checks = 0;

  void add(double id, const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex);
    storages[id].push_back(tensor.storage().getWeakStorageImpl());
  }
  int64_t alive(double id) {
    std::lock_guard<std::mutex> lock(mutex);
    ++checks;
    int64_t count = 0;
    for (const auto& storage : storages[id]) count += storage.expired() ? 0 : 1;
    return count;
  }
};

// A function whose backward checks that no stashed tensor is held. It runs right after the backward
// of the stashing layer, which comes next in the model.
struct CheckInBackward : torch::autograd::Function<CheckInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               Stashed* stashed) {
    context->saved_data["stashed"] = reinterpret_cast<int64_t>(stashed);
    context->saved_data["id"] = x[0][0].item<double>();
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* stashed = reinterpret_cast<Stashed*>(context->saved_data["stashed"].toInt());
    EXPECT_EQ(stashed->alive(context->saved_data["id"].toDouble()), 0);
    return {gradients[0], torch::Tensor()};
  }
};

struct BeforeImpl : nn::Module {
  explicit BeforeImpl(Stashed* stashed) : stashed(stashed) {}
  torch::Tensor forward(torch::Tensor x) { return CheckInBackward::apply(x, stashed); }
  Stashed* stashed;
};
TORCH_MODULE(Before);

struct StashFreshImpl : nn::Module, skip::Skippable {
  explicit StashFreshImpl(Stashed* stashed) : Skippable({"skip"}, {}), stashed(stashed) {}
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor fresh = x * 2;
    stashed->add(x[0][0].item<double>(), fresh);
    stash("skip", fresh);
    return x;
  }
  Stashed* stashed;
};
TORCH_MODULE(StashFresh);

TEST(SkipPipeline, NothingIsHeldWhenBackwardReachesTheLayerBeforeTheStash) {
  for (const bool training : {true, false}) {
    for (Checkpoint mode : kModes) {
      for (const std::vector<int64_t>& balance :
           {std::vector<int64_t>{4}, {1, 3}, {2, 2}, {3, 1}, {2, 1, 1}, {1, 1, 1, 1}}) {
        for (const bool step : {false, true}) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) +
                       (training ? " train" : " eval") + (step ? " step" : " forward"));
          Stashed stashed;
          const Before before(&stashed);
          const StashFresh stash(&stashed);
          GPipe pipe(nn::Sequential(before, stash, nn::Identity(), pop_layer({"skip"})),
                     options(balance, 3, mode));
          pipe->train(training);
          const at::Tensor x =
              torch::arange(3).to(torch::kFloat).unsqueeze(1).expand({3, 2}).clone();
          x.requires_grad_();
          if (step) {
            pipe->step({x}, {}, [](const Tensors& o, const Tensors&) { return o[0].sum(); });
          } else {
            pipe->forward(x).sum().backward();
          }
          const at::Tensor want = torch::full({3, 2}, 3.0);
          if (step) {
            // The gradient is a third of 3, because the loss is a mean over three micro-batches. A
            // third is rounded.
            EXPECT_TRUE(torch::allclose(x.grad(), want / 3, /*rtol=*/1e-6, /*atol=*/0));
          } else {
            EXPECT_THAT(x.grad(), EqualsBitwise(want));
          }
          EXPECT_EQ(stashed.checks, 3);
          for (double id : {0, 1, 2}) EXPECT_EQ(stashed.alive(id), 0);
        }
      }
    }
  }
}

TEST(SkipPipeline, WithoutGradientsNothingIsHeldAfterThePop) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{3}, {1, 2}, {1, 1, 1}}) {
    Stashed stashed;
    struct CheckImpl : nn::Module {
      explicit CheckImpl(Stashed* stashed) : stashed(stashed) {}
      torch::Tensor forward(torch::Tensor x) {
        EXPECT_EQ(stashed->alive(x[0][0].item<double>() / 3), 0);
        return x;
      }
      Stashed* stashed;
    };
    GPipe pipe(nn::Sequential(StashFresh(&stashed), pop_layer({"skip"}),
                              std::make_shared<CheckImpl>(&stashed)),
               options(balance, 3, Checkpoint::kExceptLast));
    torch::NoGradGuard no_grad;
    pipe->forward(torch::arange(3).to(torch::kFloat).unsqueeze(1));
    EXPECT_EQ(stashed.checks, 3);
    EXPECT_EQ(stashed.storages.size(), 3u);
  }
}

TEST(SkipPipeline, StagesBetweenDoNotSeeTheTensor) {
  for (const bool split : {true, false}) {
    std::vector<size_t> sizes;
    std::mutex mutex;
    struct LookImpl : nn::Module {
      LookImpl(std::mutex* mutex, std::vector<size_t>* sizes) : mutex(mutex), sizes(sizes) {}
      torch::Tensor forward(torch::Tensor x) {
        std::lock_guard<std::mutex> lock(*mutex);
        sizes->push_back(skip::Tracker::current().size());
        return x;
      }
      std::mutex* mutex;
      std::vector<size_t>* sizes;
    };
    GPipe pipe(nn::Sequential(stash_layer({"skip"}), std::make_shared<LookImpl>(&mutex, &sizes),
                              pop_layer({"skip"})),
               options(split ? std::vector<int64_t>{1, 1, 1} : std::vector<int64_t>{3}, 2,
                       Checkpoint::kNever));
    EXPECT_THAT(pipe->forward(torch::ones({4, 1})), EqualsBitwise(torch::full({4, 1}, 2.0)));
    // With a single stage, the tensor waits in that stage's own table. With three stages it goes by
    // a direct route, so the middle stage's table is empty.
    const size_t seen = split ? 0 : 1;
    EXPECT_THAT(sizes, ::testing::ElementsAre(seen, seen));
  }
}

TEST(SkipPipeline, ADeclaredSkipThatIsNotUsedIsAnError) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{3}, {1, 2}, {1, 1, 1}}) {
    const at::Tensor x = torch::rand({4, 1});
    SkipLayer stash = stash_layer({"a", "b"});
    SkipLayer pop = pop_layer({"a", "b"});
    GPipe pipe(nn::Sequential(stash, plain_layer(), pop), options(balance, 2, Checkpoint::kAlways));
    stash->to_stash = {"a"};
    EXPECT_THAT([&] { pipe->forward(x); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("'b'"), HasSubstr("layer 0 ('0')"))));
    stash->to_stash = {"a", "b"};
    pop->to_pop = {"b"};
    EXPECT_THAT([&] { pipe->forward(x); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("'a'"), HasSubstr("layer 2 ('2')"))));
    pop->to_pop = {"a", "b", "b"};
    EXPECT_THAT([&] { pipe->forward(x); }, ThrowsMessage<c10::Error>(HasSubstr("'b'")));
    pop->to_pop = {"a", "c"};
    EXPECT_THAT([&] { pipe->forward(x); }, ThrowsMessage<c10::Error>(HasSubstr("c")));
    pop->to_pop = {"a", "b"};
    EXPECT_THAT(pipe->forward(x), EqualsBitwise(x + x + x));
  }
}

TEST(SkipPipeline, ASubmoduleThatStashesButDoesNotPopIsAnError) {
  SkipLayer inner(skip::testing::Names{"b"}, skip::testing::Names{"a"});
  GPipe pipe(nn::Sequential(stash_layer({"a"}), Nest(plain_layer(), inner), pop_layer({"b"})),
             options({3}, 2, Checkpoint::kAlways));
  inner->to_pop = {};
  EXPECT_THAT(
      [&] {
        pipe->forward(torch::rand({4, 1}));
      },
      ThrowsMessage<c10::Error>(AllOf(HasSubstr("'a' is declared to be popped by its submodule"),
                                      HasSubstr("layer 1 ('1')"))));
}

TEST(SkipPipeline, SkipsThatDoNotPairUpAreRefusedAtOnce) {
  nn::Sequential model(stash_layer({"a"}), pop_layer({"b"}));
  EXPECT_THAT(
      [&] {
        GPipe pipe(model, options({1, 1}, 2, Checkpoint::kAlways));
      },
      ThrowsMessage<c10::TypeError>(AllOf(HasSubstr("'a'"), HasSubstr("'b'"))));
}

// The pipeline has already made its routes when isolate() is called, so that is an error, although
// the plain model would still run.
TEST(SkipPipeline, IsolateAfterThePipelineWasMadeIsAnErrorUntilItIsUndone) {
  SkipLayer stash = stash_layer({"skip"});
  SkipLayer pop = pop_layer({"skip"});
  for (const auto& balance : std::vector<std::vector<int64_t>>{{1, 1, 1}, {2, 1}, {3}}) {
    GPipe pipe(nn::Sequential(stash, nn::Linear(4, 4), pop),
               options(balance, 2, Checkpoint::kAlways));
    const at::Tensor x = torch::rand({4, 4});
    const at::Tensor expected = pipe->forward(x);
    const at::Tensor earlier = pipe->forward(x).sum();

    const skip::Namespace ns;
    const auto is_refused = [&](const std::string& layer) {
      return ThrowsMessage<c10::ValueError>(
          AllOf(HasSubstr("isolate() was called on " + layer), HasSubstr("after the pipeline"),
                HasSubstr("skip 'skip' is now 'skip' (namespace " + std::to_string(ns.id())),
                HasSubstr("make a new pipeline")));
    };
    const auto forward = [&] { pipe->forward(x); };
    const auto step = [&] { pipe->step({x}, {}, square); };
    const auto backward = [&] { earlier.backward(); };
    pop->isolate(ns);
    EXPECT_THAT(forward, is_refused("layer 2 ('2')"));
    EXPECT_THAT(step, is_refused("layer 2 ('2')"));
    EXPECT_THAT(backward, is_refused("layer 2 ('2')"));
    // Now both ends are isolated in another namespace. So the skips still pair up, but not as the
    // pipeline has read them.
    stash->isolate(ns);
    EXPECT_THAT(forward, is_refused("layer 0 ('0')"));

    stash->isolate(skip::Namespace::common());
    pop->isolate(skip::Namespace::common());
    EXPECT_TRUE(torch::equal(pipe->forward(x), expected));
  }
}

}  // namespace
}  // namespace gpipe
