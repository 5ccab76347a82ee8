// Tests memory, parameters and gradients that are shared by several cells, stages or callers.

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
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
using skip::testing::stash_layer;
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

constexpr int64_t kWidth = 6;

void expect_same_gradients(const nn::Sequential& plain, const GPipe& pipe) {
  const auto have = pipe->named_parameters();
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_THAT(have[parameter.key()].grad(), EqualsBitwise(parameter.value().grad()))
        << parameter.key();
  }
}

// Compares the model of `make` with the plain model, in a pipeline of every balance, mode, entry
// and number of chunks.
void expect_equal_everywhere(const std::function<nn::Sequential()>& make,
                             const std::vector<std::vector<int64_t>>& balances, int64_t rows,
                             const std::vector<int64_t>& chunk_numbers, int calls = 2) {
  at::set_num_threads(1);
  std::mt19937_64 random = testing::test_random();
  for (const auto& balance : balances) {
    for (int64_t chunks : chunk_numbers) {
      for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
        for (int entry = 0; entry < 4; ++entry) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " chunks " + std::to_string(chunks) +
                       " " + to_text(mode) + " entry " + std::to_string(entry));
          testing::manual_seed(1);
          nn::Sequential plain_module = make();
          testing::manual_seed(1);
          GPipe pipe(make(), cpu_options(balance).chunks(chunks).checkpoint(mode));
          PlainModel plain(plain_module, chunks);
          const Tensor x = torch::randn({rows, kWidth});
          const Tensor y = torch::randn({rows, kWidth});
          for (int call = 0; call < calls; ++call) {
            testing::manual_seed(2 + call);
            StepResult want;
            if (entry == 0) {
              want = plain.forward_backward({x}, {y}, square_loss);
            } else {
              want =
                  plain.step({x}, {y}, square_loss,
                             entry == 2 ? BackwardOrder::kDescending : BackwardOrder::kAscending);
            }
            testing::manual_seed(2 + call);
            if (entry == 0) {
              const Tensor output = pipe->forward(x);
              EXPECT_THAT(output, EqualsBitwise(want.outputs[0]));
              square_loss({output}, {y}).backward();
            } else {
              StepOptions step;
              if (entry == 2) step.schedule(Schedule::gpipe);
              if (entry == 3) {
                step.schedule([&](int64_t stages, int64_t micro_batches) {
                  return testing::random_schedule(stages, micro_batches,
                                                  testing::MicroBatchOrder::kAscending, random);
                });
              }
              EXPECT_EQ(pipe->step({x}, {y}, square_loss, step).loss, want.loss);
            }
            expect_same_gradients(plain_module, pipe);
          }
        }
      }
    }
  }
}

struct PositionImpl : nn::Module {
  PositionImpl() { position = register_parameter("position", torch::randn({kWidth})); }
  Tensor forward(Tensor x) { return x + position.unsqueeze(0); }
  Tensor position;
};
TORCH_MODULE(Position);

TEST(Sharing, APositionalEmbeddingBehindACutWithMicroBatchesOfOneRow) {
  expect_equal_everywhere(
      [] {
        return nn::Sequential(nn::Linear(kWidth, kWidth), Position(), nn::Tanh(), Position(),
                              Position());
      },
      {{5}, {1, 4}, {1, 1, 1, 1, 1}, {2, 1, 2}}, /*rows=*/8, {8, 3}, /*calls=*/4);
}

// A positional embedding with a hook, behind a cut, must give the right gradients, too. The engine
// runs the hook.
TEST(Sharing, APositionalEmbeddingWithHooks) {
  expect_equal_everywhere(
      [] {
        Position hooked;
        hooked->position.register_hook([](const Tensor& g) { return g * 2; });
        return nn::Sequential(nn::Linear(kWidth, kWidth), hooked, nn::Tanh());
      },
      {{1, 2}, {1, 1, 1}}, /*rows=*/6, {6});
}

TEST(Sharing, TheCallersGradientStaysTheCallers) {
  GPipe pipe(nn::Sequential(Position(), Position()), cpu_options({1, 1}));
  const Tensor x = torch::randn({1, kWidth});
  const Tensor gradient = torch::ones({1, kWidth});
  for (int call = 0; call < 3; ++call) pipe->forward(x).backward(gradient);
  EXPECT_THAT(gradient, EqualsBitwise(torch::ones({1, kWidth})));
  EXPECT_THAT(pipe->parameters()[0].grad(), EqualsBitwise(torch::full({kWidth}, 3.0)));
}

// --- Parameters that several stages use, or that no stage has registered.

struct ScaledImpl : nn::Module {
  explicit ScaledImpl(Tensor scale) : scale(register_parameter("scale", std::move(scale))) {}
  Tensor forward(Tensor x) { return (x * scale).sin() + x * scale * 0.3; }
  Tensor scale;
};
TORCH_MODULE(Scaled);

TEST(Sharing, TiedParametersAddUpInThePlainOrder) {
  expect_equal_everywhere(
      [] {
        const Tensor scale = torch::randn({kWidth});
        return nn::Sequential(Scaled(scale), nn::Linear(kWidth, kWidth), Scaled(scale), nn::Tanh(),
                              Scaled(scale));
      },
      {{5}, {2, 3}, {1, 1, 1, 1, 1}, {2, 2, 1}}, /*rows=*/7, {7, 3});
}

TEST(Sharing, ATiedParametersHooksAreCalledOnceForEachMicroBatch) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    const Tensor scale = torch::randn({kWidth});
    auto busy = std::make_shared<std::atomic<int>>(0);
    auto calls = std::make_shared<std::atomic<int>>(0);
    GPipe pipe(nn::Sequential(Scaled(scale), nn::Linear(kWidth, kWidth), Scaled(scale)),
               cpu_options({1, 1, 1}).chunks(4).checkpoint(mode));
    scale.register_hook([busy, calls](const Tensor&) {
      EXPECT_EQ(busy->fetch_add(1), 0) << "two threads at once";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      busy->fetch_sub(1);
      ++*calls;
    });
    pipe->step({torch::randn({8, kWidth})}, {torch::randn({8, kWidth})}, square_loss);
    EXPECT_EQ(calls->load(), 4);
  }
}

// The loss and a lambda use a parameter that another stage has registered, and a tensor that no
// stage has registered. Their gradients must add up in the order of the plain model.
TEST(Sharing, ParametersUsedOutsideTheirStageAddUpInThePlainOrder) {
  at::set_num_threads(1);
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    std::vector<std::vector<Tensor>> results;
    for (int run = 0; run < 12; ++run) {  // the first run uses the plain model
      testing::manual_seed(3);
      nn::Linear first(kWidth, kWidth), last(kWidth, kWidth);
      const Tensor outside = torch::randn({kWidth}).requires_grad_();
      auto captures = layer<Tensor, Tensor>(
          [first, outside](Tensor x) { return x.matmul(first->weight).tanh() * outside; });
      nn::Sequential module(first, captures, last);
      auto loss = [=](const Tensors& o, const Tensors& t) {
        return square_loss(o, t) + first->weight.pow(2).sum() * 0.1 +
               (outside * last->bias).cos().sum();
      };
      const Tensor x = torch::randn({7, kWidth});
      const Tensor y = torch::randn({7, kWidth});
      for (int call = 0; call < 2; ++call) {
        if (run == 0) {
          PlainModel(module, 4).step({x}, {y}, loss, BackwardOrder::kAscending);
        } else {
          GPipe(module, cpu_options({1, 1, 1}).chunks(4).checkpoint(mode))->step({x}, {y}, loss);
        }
      }
      results.push_back({outside.grad()});
      for (const Tensor& parameter : module->parameters()) {
        results.back().push_back(parameter.grad());
      }
      EXPECT_THAT(results.back(), EqualsBitwise(results.front())) << "run " << run;
    }
  }
}

TEST(Sharing, AParameterOfALaterStageMustBeRegistered) {
  nn::Linear last(kWidth, kWidth);
  auto captures = layer<Tensor, Tensor>([last](Tensor x) { return x * last->bias; });
  GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), captures, last),
             cpu_options({2, 1}).chunks(2));
  EXPECT_THAT(([&] {
                pipe->step({torch::randn({4, kWidth})}, {torch::randn({4, kWidth})}, square_loss);
              }),
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("'2.bias'"), HasSubstr("stage 0"),
                                              HasSubstr("register_parameter"))));
}

// --- Changes in place behind a cut.

struct PopImpl : nn::Module, skip::Skippable {
  PopImpl() : Skippable({}, {"skip"}) {}
  Tensor forward(Tensor x) { return x * pop("skip"); }
};
TORCH_MODULE(Pop);

// Expects that the model gives the right results or is refused, for every cut, mode and entry.
void expect_right_or_refused(const std::function<nn::Sequential()>& make, int64_t layers,
                             bool one_stage_is_right) {
  at::set_num_threads(1);
  std::vector<std::vector<int64_t>> balances = {{layers}};
  for (int64_t cut = 1; cut < layers; ++cut) {
    balances.push_back({cut, layers - cut});
    for (int64_t second = cut + 1; second < layers; ++second) {
      balances.push_back({cut, second - cut, layers - second});
    }
  }
  for (const auto& balance : balances) {
    for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      for (bool step : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(balance) + to_text(mode) + (step ? " step" : ""));
        testing::manual_seed(4);
        nn::Sequential plain_module = make();
        testing::manual_seed(4);
        GPipe pipe(make(), cpu_options(balance).chunks(2).checkpoint(mode));
        const Tensor x = torch::randn({4, kWidth});
        const Tensor y = torch::randn({4, kWidth});
        bool refused = false;
        try {
          if (step) {
            pipe->step({x}, {y}, square_loss);
          } else {
            square_loss({pipe->forward(x)}, {y}).backward();
          }
        } catch (const c10::Error& error) {
          refused = true;
          EXPECT_THAT(error.what(), HasSubstr("in place"));
        }
        if (balance.size() == 1 && mode == Checkpoint::kNever) {
          EXPECT_EQ(refused, !one_stage_is_right);
        }
        if (refused) continue;
        PlainModel plain(plain_module, 2);
        if (step) {
          plain.step({x}, {y}, square_loss, BackwardOrder::kAscending);
        } else {
          plain.forward_backward({x}, {y}, square_loss);
        }
        expect_same_gradients(plain_module, pipe);
      }
    }
  }
}

nn::ReLU relu_in_place() { return nn::ReLU(nn::ReLUOptions().inplace(true)); }

TEST(InPlaceBehindACut, OfAStashedTensorIsRightOrRefused) {
  expect_right_or_refused(
      [] {
        return nn::Sequential(nn::Linear(kWidth, kWidth), stash_layer({"skip"}), relu_in_place(),
                              nn::Linear(kWidth, kWidth), Pop());
      },
      5, /*one_stage_is_right=*/true);
}

TEST(InPlaceBehindACut, OfATensorBesideAViewOfItIsRightOrRefused) {
  auto make = [](bool same) {
    auto both = layer<Tensor, Tensors>([same](Tensor x) {
      return Tensors{x, same ? x : x.view({x.size(0), 2, 3})};
    });
    auto change = layer<Tensors, Tensors>([](Tensors v) {
      v[0].mul_(3);
      return v;
    });
    auto join = layer<Tensors, Tensor>(
        [](Tensors v) { return v[0] * 0.5 + v[1].sin().reshape(v[0].sizes()); });
    return nn::Sequential(nn::Linear(kWidth, kWidth), both, change, join);
  };
  expect_right_or_refused([&] { return make(false); }, 4, /*one_stage_is_right=*/true);
  expect_right_or_refused([&] { return make(true); }, 4, /*one_stage_is_right=*/true);
}

// In this model no tensor requires a gradient until the change brings in a parameter.
TEST(InPlaceBehindACut, ThatBringsInAParameterIsRightOrRefused) {
  auto make = [](bool stashed) {
    struct AddInPlaceImpl : nn::Module {
      AddInPlaceImpl() { bias = register_parameter("bias", torch::randn({kWidth})); }
      Tensor forward(Tensor x) { return x.add_(bias); }
      Tensor bias;
    };
    auto twice = layer<Tensor, Tensor>([](Tensor x) { return x * 2; });
    nn::Sequential module;
    module->push_back(twice);
    if (stashed) module->push_back(stash_layer({"skip"}));
    module->push_back(std::make_shared<AddInPlaceImpl>());
    if (stashed) module->push_back(Pop());
    return module;
  };
  expect_right_or_refused([&] { return make(true); }, 4, /*one_stage_is_right=*/true);
  expect_right_or_refused([&] { return make(false); }, 2, /*one_stage_is_right=*/true);
}

// If a stage passes on the same tensor twice, it is one tensor behind the cut, too. If it passes on
// two halves of a tensor, a change of one half does not matter to the other.
TEST(InPlaceBehindACut, WorksOnTheSameTensorTwiceAndOnOneHalf) {
  at::set_num_threads(1);
  auto twice = layer<Tensor, Tensors>([](Tensor x) { return Tensors{x, x}; });
  auto halves = layer<Tensor, Tensors>([](Tensor x) {
    return Tensors{x.slice(1, 0, 3), x.slice(1, 3, 6)};
  });
  auto change = layer<Tensors, Tensor>([](Tensors v) {
    v[0].mul_(3);
    return torch::cat({v[0], v[1].sin() * v[1]}, 1).slice(1, 0, kWidth);
  });
  for (auto both : {twice, halves}) {
    testing::manual_seed(5);
    nn::Linear linear(kWidth, kWidth);
    nn::Sequential module(linear, both, change);
    const Tensor x = torch::randn({4, kWidth});
    const Tensor y = torch::randn({4, kWidth});
    PlainModel(module, 2).step({x}, {y}, square_loss, BackwardOrder::kAscending);
    const Tensor want = linear->weight.grad().clone();
    linear->zero_grad();
    GPipe pipe(module, cpu_options({2, 1}).chunks(2).checkpoint(Checkpoint::kNever));
    pipe->step({x}, {y}, square_loss);
    EXPECT_THAT(linear->weight.grad(), EqualsBitwise(want));
  }
}

TEST(InPlaceBehindACut, OfAParameterIsRefused) {
  struct GiveImpl : nn::Module {
    GiveImpl() { weight = register_parameter("weight", torch::ones({4, kWidth})); }
    Tensors forward(Tensor x) { return {x, weight.slice(0, 0, x.size(0))}; }
    Tensor weight;
  };
  auto change = layer<Tensors, Tensor>([](Tensors v) { return v[0] * v[1].mul_(2); });
  auto give = std::make_shared<GiveImpl>();
  nn::Sequential module;
  module->push_back(nn::Linear(kWidth, kWidth));
  module->push_back(give);
  module->push_back(change);
  GPipe pipe(module, cpu_options({2, 1}).checkpoint(Checkpoint::kNever));
  EXPECT_THAT(
      [&] {
        pipe->forward(torch::randn({4, kWidth}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("a parameter, a buffer or an input")));
  EXPECT_THAT(give->weight, EqualsBitwise(torch::full({4, kWidth}, 2.0).set_requires_grad(false)))
      << "the layer's own change of the weight stays";
}

TEST(InPlaceAtTheInput, OfAFirstLayerWorksWithSeveralMicroBatchesAsInALoop) {
  at::set_num_threads(1);
  for (bool step : {false, true}) {
    testing::manual_seed(6);
    nn::Linear linear(kWidth, kWidth);
    nn::Sequential module(relu_in_place(), linear);
    const Tensor x = torch::randn({6, kWidth});
    const Tensor y = torch::randn({6, kWidth});
    const Tensor given = x.clone();
    const Tensor looped = x.clone();
    for (int64_t start = 0; start < 6; start += 2) {
      const Tensor output = module->forward(looped.narrow(0, start, 2));
      (square_loss({output}, {y.narrow(0, start, 2)}) / 3).backward();
    }
    const Tensor want = linear->weight.grad().clone();
    linear->zero_grad();
    GPipe pipe(module, cpu_options({1, 1}).chunks(3).checkpoint(Checkpoint::kNever));
    const int64_t version = given._version();
    if (step) {
      pipe->step({given}, {y}, square_loss);
      // The gradients are close but not equal, because the loop divides each loss, and step()
      // multiplies it by a factor.
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), want, /*rtol=*/1e-5, /*atol=*/1e-7));
    } else {
      const Tensor output = pipe->forward(given);
      EXPECT_THAT(given, EqualsBitwise(x.relu())) << "as the plain model leaves it";
      EXPECT_GT(given._version(), version) << "the version counter rises, so that autograd notices "
                                              "the change in graphs that saved the tensor";
      square_loss({output}, {y}).backward();
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), want, /*rtol=*/1e-5, /*atol=*/1e-7));
    }
  }
}

TEST(InPlaceAtTheInput, OfOneThatOverlapsAnotherIsRefused) {
  for (const size_t changed : {0, 1, 2}) {
    nn::Sequential model(layer<Tensors, Tensors>([changed](Tensors values) {
      values[changed].mul_(2);
      return values;
    }));
    GPipe pipe(model, cpu_options({1}).chunks(2).checkpoint(Checkpoint::kNever));
    const Tensor x = torch::randn({4, kWidth}).requires_grad_() * 1;
    const Tensor alone = torch::randn({4, kWidth}).requires_grad_() * 1;
    // The first and the last input share memory. The input between them shares none, so it may be
    // changed.
    const auto call = [&] { pipe->forward(Tensors{x, alone, x.narrow(1, 2, 3)}); };
    if (changed == 1) {
      EXPECT_NO_THROW(call());
    } else {
      EXPECT_THAT(call, ThrowsMessage<c10::Error>(
                            HasSubstr("changed a tensor in place that also went another way")));
    }
  }
}

TEST(InPlaceAtTheInput, IsCountedForTheCallerAlsoWhenTheCallFails) {
  nn::Sequential model(
      layer<Tensor, Tensor>([](Tensor x) { return x.mul_(2); }),
      layer<Tensor, Tensor>([](Tensor) -> Tensor { throw std::runtime_error("broken layer"); }));
  GPipe pipe(model, cpu_options({1, 1}));
  const Tensor x = torch::ones({4, kWidth});
  const auto before = x._version();
  EXPECT_THROW(pipe->forward(x), std::runtime_error);
  EXPECT_GT(x._version(), before) << "autograd would not know that the input has changed";
}

// A layer passes on a view of what it has stashed, and a later stage changes the view in place.
// Without gradients, the popping layer must see that change, as in the plain model.
TEST(InPlaceBehindACut, IsSeenThroughTheSkipWithoutGradientsAcrossSeveralStages) {
  struct Stash : nn::Module, skip::Skippable {
    Stash() : Skippable({"x"}, {}) {}
    Tensor forward(Tensor x) {
      x = x * 1;
      stash("x", x);
      return x.view({x.size(0), -1});
    }
  };
  struct Pop : nn::Module, skip::Skippable {
    Pop() : Skippable({}, {"x"}) {}
    Tensor forward(Tensor y) { return pop("x") + 10 * y; }
  };
  auto make = [] {
    auto pass = [] { return layer<Tensor, Tensor>([](Tensor x) { return x; }); };
    return nn::Sequential(std::make_shared<Stash>(), pass(), pass(),
                          layer<Tensor, Tensor>([](Tensor x) { return x.mul_(2); }),
                          std::make_shared<Pop>());
  };
  torch::NoGradGuard no_grad;
  const Tensor x = torch::randn({4, kWidth});
  const Tensor want = make()->forward(x);
  for (const auto& balance :
       std::vector<std::vector<int64_t>>{{5}, {1, 4}, {1, 1, 3}, {1, 1, 1, 2}, {1, 1, 1, 1, 1}}) {
    GPipe pipe(make(), cpu_options(balance).chunks(2));
    EXPECT_THAT(pipe->forward(x), EqualsBitwise(want)) << ::testing::PrintToString(balance);
  }
}

TEST(Sharing, AParameterThatALayerReturnsMayChangeBetweenSteps) {
  struct WithScale : nn::Module {
    WithScale() { scale = register_parameter("scale", torch::ones({4, kWidth})); }
    Tensors forward(Tensor x) { return {x, scale}; }
    Tensor scale;
  };
  nn::Sequential model(std::make_shared<WithScale>(), layer<Tensors, Tensor>([](Tensors values) {
                         return values[0] * values[1];
                       }));
  GPipe pipe(model, cpu_options({1, 1}));
  const Tensor x = torch::ones({4, kWidth});
  for (int step = 0; step < 3; ++step) {
    pipe->step({x}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); });
    torch::NoGradGuard no_grad;
    for (const Tensor& p : pipe->parameters()) {
      p.sub_(p.grad(), 0.25);
      p.mutable_grad() = Tensor();
    }
  }
  EXPECT_THAT(pipe->parameters().front(), EqualsBitwise(torch::full({4, kWidth}, 0.25)));
}

TEST(InPlaceAtTheInput, ByTheCallerBetweenForwardAndBackwardIsTheCallersFault) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth)),
               cpu_options({1, 1}).chunks(2).checkpoint(mode));
    Tensor x = torch::randn({4, kWidth});
    const Tensor output = pipe->forward(x);
    x.add_(1);
    if (mode == Checkpoint::kAlways) {
      EXPECT_THAT([&] { output.sum().backward(); },
                  ThrowsMessage<c10::Error>(
                      AllOf(HasSubstr("input 0 of the pipeline"), HasSubstr("changed in place"))));
    } else {
      EXPECT_THAT([&] { output.sum().backward(); },
                  ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
    }
    // In this model no operator saves the tensor, so the change does no harm, as in the plain
    // model.
    GPipe scaling(nn::Sequential(layer<Tensor, Tensor>([](Tensor t) { return t * 2; }),
                                 nn::Linear(kWidth, kWidth)),
                  cpu_options({1, 1}).chunks(2).checkpoint(Checkpoint::kNever));
    const Tensor fine = scaling->forward(x);
    x.add_(1);
    fine.sum().backward();
  }
}

// A layer that overwrites one tensor for every micro-batch, and passes it on. The results must be
// right, or the pipeline must refuse it.
TEST(Sharing, MemoryThatALayerUsesAgainIsRightOrRefused) {
  at::set_num_threads(1);
  struct ReusingImpl : nn::Module {
    Tensor forward(Tensor x) {
      torch::NoGradGuard no_grad;
      if (!kept.defined() || kept.size(0) != x.size(0)) kept = torch::empty_like(x);
      torch::sin_out(kept, x);
      return kept;
    }
    Tensor kept;
  };
  auto slow = layer<Tensor, Tensor>([](Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return x * 1;
  });
  const Tensor x = torch::randn({8, kWidth});
  for (int way = 0; way < 3; ++way) {  // with no_grad, in inference mode, in training
    nn::Sequential module;
    module->push_back(std::make_shared<ReusingImpl>());
    module->push_back(slow);
    module->push_back(nn::Linear(kWidth, kWidth));
    GPipe pipe(module, cpu_options({1, 2}).chunks(8));
    const Tensor want = module[2]->as<nn::Linear>()->forward(x.sin());
    if (way == 0) {
      torch::NoGradGuard no_grad;
      EXPECT_THAT(pipe->forward(x), EqualsBitwise(PlainModel(module, 8).forward({x})[0]));
    } else if (way == 1) {
      c10::InferenceMode inference;
      EXPECT_THAT(pipe->forward(x), EqualsBitwise(PlainModel(module, 8).forward({x})[0]));
    } else {
      EXPECT_THAT(pipe->forward(x), EqualsBitwise(PlainModel(module, 8).forward({x})[0]));
    }
  }
  // If the tensor that the layer fills again has a graph, no copy would be right, so the pipeline
  // refuses it.
  struct GraphImpl : nn::Module {
    Tensor forward(Tensor x) {
      kept = kept.defined() ? kept.detach().copy_(x).mul_(2).requires_grad_() : x * 2;
      return kept;
    }
    Tensor kept;
  };
  nn::Sequential module;
  module->push_back(nn::Linear(kWidth, kWidth));
  module->push_back(std::make_shared<GraphImpl>());
  module->push_back(slow);
  GPipe pipe(module, cpu_options({2, 1}).chunks(8).checkpoint(Checkpoint::kNever));
  EXPECT_THAT([&] { pipe->forward(x); }, ThrowsMessage<c10::Error>(HasSubstr("clone()")));
}

TEST(InPlaceAtTheInput, OfTheCallersComputedTensorIsNoticedByAutograd) {
  for (bool step : {false, true}) {
    const Tensor w = torch::randn({4, kWidth}).requires_grad_();
    const Tensor x = w.exp();  // exp() saves its result
    auto triple = layer<Tensor, Tensor>([](Tensor t) { return t.mul_(3); });
    GPipe pipe(nn::Sequential(triple, nn::Linear(kWidth, kWidth)),
               cpu_options({1, 1}).chunks(2).checkpoint(Checkpoint::kNever));
    auto loss = [](const Tensors& o, const Tensors&) { return o.at(0).mean(); };
    EXPECT_THAT(([&] {
                  if (step) {
                    pipe->step({x}, {}, loss);
                  } else {
                    pipe->forward(x).mean().backward();
                  }
                }),
                ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
    EXPECT_FALSE(w.grad().defined());
  }
}

TEST(Sharing, OutputsShareNoMemoryWithInputsAndParameters) {
  GPipe pipe(nn::Sequential(nn::Identity(), nn::Flatten()), cpu_options({1, 1}));
  const Tensor x = torch::ones({2, 3, 4});
  pipe->forward(x).zero_();
  EXPECT_THAT(x, EqualsBitwise(torch::ones({2, 3, 4})));
  auto both = layer<Tensor, Tensors>([](Tensor t) { return Tensors{t, t.view({-1, 4}), t}; });
  GPipe views(nn::Sequential(nn::Linear(4, 4), both), cpu_options({1, 1}));
  const Tensors outputs = views->forward(Tensors{torch::ones({2, 4})});
  EXPECT_FALSE(outputs[0].is_alias_of(outputs[1]));
  EXPECT_TRUE(outputs[0].is_same(outputs[2]));
}

}  // namespace
}  // namespace gpipe
