// Tests what docs/design/thread_state.md says about modes that belong to a thread or to the
// process. Each mode must reach the layers, or be refused, or cause a warning.

#include <ATen/Context.h>
#include <ATen/ops/_make_dual.h>
#include <c10/core/AutogradState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cfenv>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/runtime/run_lock.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::AutocastScope;
using testing::BackwardOrder;
using testing::cpu_options;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using testing::PlainModel;
using testing::square_loss;
using ::testing::ThrowsMessage;
using torch::Tensor;

// While a FloatSettings lives, this thread rounds in another direction, or flushes denormals.
class FloatSettings {
 public:
  FloatSettings(int rounding, bool flush) {
    std::fesetround(rounding);
    at::globalContext().setFlushDenormal(flush);
  }
  ~FloatSettings() {
    at::globalContext().setFlushDenormal(false);
    std::fesetround(FE_TONEAREST);
  }
  FloatSettings(const FloatSettings&) = delete;
  FloatSettings& operator=(const FloatSettings&) = delete;
};

nn::Sequential chain() {
  testing::manual_seed(1);
  return nn::Sequential(nn::Linear(5, 6), nn::Tanh(), nn::Linear(6, 6), nn::Sigmoid(),
                        nn::Linear(6, 3));
}

Tensor input() {
  testing::manual_seed(2);
  return torch::randn({6, 5});
}

TEST(ThreadState, RoundingThatTheCallerSetsAfterThePipelineWasMadeReachesTheLayers) {
  at::set_num_threads(1);
  const Tensor target = torch::ones({6, 3});
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    nn::Sequential model = chain();
    PlainModel plain(model, 3);
    GPipe pipe(chain(), cpu_options({2, 2, 1}).chunks(3).checkpoint(mode));
    Tensor at_nearest;
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST}) {
      model->zero_grad();
      pipe->zero_grad();
      {
        const FloatSettings settings(rounding, false);
        plain.step({input()}, {target}, square_loss, BackwardOrder::kAscending);
        pipe->step({input()}, {target}, square_loss);
      }
      const auto have = pipe->named_parameters();
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_THAT(have[parameter.key()].grad(), EqualsBitwise(parameter.value().grad()))
            << parameter.key() << ", rounding " << rounding;
      }
      const Tensor gradient = have["0.weight"].grad();
      if (rounding == FE_TONEAREST) {
        at_nearest = gradient;
      } else {
        EXPECT_FALSE(gradient.equal(at_nearest)) << "this rounding changes nothing here";
      }
    }
  }
}

TEST(ThreadState, ARecomputeRoundsAsItsForward) {
  at::set_num_threads(1);
  nn::Sequential model = chain();
  GPipe pipe(chain(), cpu_options({2, 2, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
  GPipe kept(model, cpu_options({2, 2, 1}).chunks(2).checkpoint(Checkpoint::kNever));
  for (GPipe* each : {&pipe, &kept}) {
    Tensor output;
    {
      const FloatSettings settings(FE_UPWARD, false);
      output = (*each)->forward(input());
    }
    output.pow(2).sum().backward();
  }
  for (const auto& parameter : kept->named_parameters()) {
    EXPECT_THAT(pipe->named_parameters()[parameter.key()].grad(),
                EqualsBitwise(parameter.value().grad()));
  }
}

TEST(ThreadState, FlushedDenormalsThatTheCallerSwitchesOnAndOffReachTheLayers) {
  const Tensor small = torch::full({4, 1}, 1e-30F);
  const auto times = [] { return layer<Tensor, Tensor>([](Tensor x) { return x * 1e-10F; }); };
  GPipe pipe(nn::Sequential(times(), nn::Identity()), cpu_options({1, 1}).chunks(2));
  const torch::NoGradGuard no_grad;
  for (const bool flush : {true, false, true}) {
    Tensor product;
    {
      const FloatSettings settings(FE_TONEAREST, flush);
      product = pipe->forward(small);
    }
    // The product is checked after the settings have ended, because a thread that flushes denormals
    // also takes them for zero.
    EXPECT_EQ(product[0].item<float>() == 0, flush);
  }
}

TEST(ThreadState, WhetherTorchScriptOptimizesReachesTheLayers) {
  std::vector<bool> seen(2);
  const auto looks = [&seen](size_t place) {
    return layer<Tensor, Tensor>([&seen, place](Tensor x) {
      seen[place] = torch::jit::getGraphExecutorOptimize();
      return x;
    });
  };
  GPipe pipe(nn::Sequential(looks(0), looks(1)), cpu_options({1, 1}).chunks(1));
  for (const bool optimize : {false, true}) {
    torch::jit::setGraphExecutorOptimize(optimize);
    pipe->forward(torch::ones({2, 1}));
    torch::jit::setGraphExecutorOptimize(true);
    EXPECT_EQ(seen[0], optimize);
    EXPECT_EQ(seen[1], optimize);
  }
}

// --- Modes that must be refused, because results could not be right.

TEST(ThreadState, AutocastsCacheSwitchedOnInALayerIsAnErrorThatNamesTheLayer) {
  testing::manual_seed(1);
  const Tensor weight = torch::randn({4, 4}).requires_grad_();
  const auto cast_twice = [weight](bool cache) {
    auto casts = layer<Tensor, Tensor>([weight, cache](Tensor x) {
      const AutocastScope autocast(c10::kCPU, at::kBFloat16, cache);
      return x.mm(weight).mm(weight).to(at::kFloat);
    });
    casts->register_parameter("weight", weight);
    return casts;
  };
  for (const bool one_worker : {false, true}) {
    const auto piped = [&](bool cache) {
      GPipeOptions options = cpu_options({1, 1}).chunks(2);
      if (one_worker) options.placement(Placement::of({0, 0}));
      return GPipe(nn::Sequential(nn::Linear(4, 4), cast_twice(cache)), options);
    };
    const Tensor x = torch::randn({4, 4});
    GPipe caches = piped(true);
    EXPECT_THAT([&] { caches->step({x}, {x}, square_loss); },
                ThrowsMessage<c10::Error>(AllOf(HasSubstr("cache of cast weights is switched on"),
                                                HasSubstr("layer 1"))));
    EXPECT_NO_THROW(piped(false)->step({x}, {x}, square_loss));
  }
}

// A recompute runs in the backward. Settings of the process may have changed since the forward, and
// its values would then be others.
TEST(ThreadState, ASettingOfTheProcessThatChangesBetweenForwardAndBackwardIsRefused) {
  at::set_num_threads(1);
  at::Context& context = at::globalContext();
  struct Case {
    std::function<void()> change, undo;
    const char* name;
  };
  const std::vector<Case> cases = {
      {[] { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); },
       [] { torch::set_default_dtype(caffe2::TypeMeta::Make<float>()); }, "set_default_dtype"},
      {[&] { context.setDeterministicAlgorithms(true, false); },
       [&] { context.setDeterministicAlgorithms(false, false); }, "setDeterministicAlgorithms"}};
  // A number of the default type: 0.1 has other bits in double than in float.
  const auto model = [] {
    nn::Sequential layers = chain();
    layers->push_back(layer<Tensor, Tensor>([](Tensor x) { return x * torch::tensor(0.1) * x; }));
    return layers;
  };
  for (const Case& one : cases) {
    for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      nn::Sequential plain = model();
      GPipe pipe(model(), cpu_options({2, 2, 2}).chunks(2).checkpoint(mode));
      const Tensor output = pipe->forward(input());
      const Tensor expected = torch::cat(
          {plain->forward(input().slice(0, 0, 3)), plain->forward(input().slice(0, 3, 6))});
      one.change();
      std::string text;
      try {
        output.pow(2).sum().backward();
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
      expected.pow(2).sum().backward();
      one.undo();
      if (mode != Checkpoint::kNever) {
        EXPECT_THAT(text, AllOf(HasSubstr(one.name), HasSubstr("between forward and backward")));
        continue;
      }
      EXPECT_EQ(text, "");
      for (const auto& parameter : plain->named_parameters()) {
        EXPECT_THAT(pipe->named_parameters()[parameter.key()].grad(),
                    EqualsBitwise(parameter.value().grad()));
      }
    }
  }
}

TEST(ThreadState, ForwardModeDerivativesAreRefused) {
  GPipe pipe(chain(), cpu_options({2, 3}).chunks(2));
  const Tensor target = torch::ones({6, 3});
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const Tensor dual = at::_make_dual(input(), torch::ones({6, 5}), 0);
    const auto refused = [](const char* name) {
      return ThrowsMessage<c10::ValueError>(AllOf(HasSubstr(name), HasSubstr("has a tangent")));
    };
    EXPECT_THAT([&] { pipe->forward(dual); }, refused("input 0"));
    EXPECT_THAT([&] { pipe->step({dual}, {target}, square_loss); }, refused("input 0"));
    EXPECT_THAT([&] { pipe->evaluate({dual}, {target}, square_loss); }, refused("input 0"));
    EXPECT_THAT([&] { pipe->step({input()}, {dual.narrow(1, 0, 3)}, square_loss); },
                refused("target 0"));
    EXPECT_NO_THROW(pipe->forward(input()));
    // Without forward mode the plain model drops the tangent, too, so the pipeline does not refuse
    // it.
    c10::AutogradState::get_tls_state().set_fw_grad_mode(false);
    EXPECT_NO_THROW(pipe->forward(dual));
    c10::AutogradState::get_tls_state().set_fw_grad_mode(true);
    const Tensor weight = pipe->parameters()[0];
    weight._set_fw_grad(torch::ones_like(weight), 0, /*is_inplace_op=*/false);
    EXPECT_THAT([&] { pipe->forward(input()); }, refused("parameter 'weight' of layer 0"));
  }
  torch::autograd::ForwardADLevel::release_idx(level);
  EXPECT_NO_THROW(pipe->forward(input()));
}

// A thread that a layer starts cannot be told from any other thread of the user, which may wait. So
// its call waits, but a warning names the layer.
TEST(ThreadState, AThreadThatALayerStartsIsToldWhichLayerItWaitsFor) {
  const std::chrono::milliseconds patience = internal::RunLock::Part::patience;
  internal::RunLock::Part::patience = std::chrono::milliseconds(20);
  const testing::LogCapture log;
  GPipe* made = nullptr;
  std::thread thread;
  const auto call = [&](Tensor x) {
    if (thread.joinable()) return x;
    thread = std::thread([&] { (void)(*made)->parameter_hash(); });
    // If the layer joined the thread here, both would wait for ever. So it only waits for the
    // warning.
    for (int k = 0; k < 5000 && log.warnings().empty(); ++k) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return x;
  };
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), layer<Tensor, Tensor>(call)), cpu_options({1, 1}));
  made = &pipe;
  const Tensor x = torch::ones({2, 4});
  EXPECT_NO_THROW(pipe->step({x}, {x}, square_loss));
  thread.join();
  internal::RunLock::Part::patience = patience;
  EXPECT_THAT(log.warnings(), ::testing::ElementsAre(AllOf(HasSubstr("layer 1"),
                                                           HasSubstr("both will wait for ever"))));
}

TEST(ThreadState, ATraceIsRefused) {
  GPipe pipe(chain(), cpu_options({2, 3}).chunks(2));
  const auto trace = [&](auto call) {
    return [&pipe, call] {
      torch::jit::tracer::trace(
          {input()},
          [&](torch::jit::Stack inputs) {
            return torch::jit::Stack{call(inputs.at(0).toTensor())};
          },
          [](const Tensor&) { return std::string(); });
    };
  };
  EXPECT_THAT(trace([&](const Tensor& x) { return pipe->forward(x); }),
              ThrowsMessage<c10::Error>(HasSubstr("forward of a pipeline cannot be traced")));
  EXPECT_NO_THROW(pipe->forward(input()));
}

TEST(ThreadState, ALayerThatSeedsTheProcesssGeneratorIsToldOnceThatItSeedsNothingThere) {
  nn::Sequential model(nn::Linear(5, 5), layer<Tensor, Tensor>([](Tensor x) {
                         torch::manual_seed(7);
                         return x + torch::rand_like(x);
                       }));
  GPipe pipe(model, cpu_options({1, 1}).chunks(2));
  GPipe usual(nn::Sequential(nn::Linear(5, 5), nn::Dropout()), cpu_options({1, 1}).chunks(2));
  const testing::LogCapture log;
  usual->step({input()}, {input()}, square_loss);
  EXPECT_THAT(log.warnings(), ::testing::IsEmpty());
  for (int call = 0; call < 2; ++call) {
    torch::manual_seed(call);
    pipe->step({input()}, {input()}, square_loss);
  }
  EXPECT_THAT(log.warnings(), ::testing::ElementsAre(HasSubstr("Seed between calls")));
}

}  // namespace
}  // namespace gpipe
