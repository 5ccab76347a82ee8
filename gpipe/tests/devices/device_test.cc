// Tests pipelines over devices. In device_test all stages are on the CPU, in device_fake_test on
// the fake accelerator, in device_cuda_test on the available GPUs (a single GPU stands for all).

#include "gpipe/testing/device.h"

#include <ATen/ops/linear.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::convolutions_with_a_skip;
using testing::device;
using testing::devices;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::on_host;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

at::Tensor square(const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); }

// Returns the gradients of the plain model on the CPU: first the input's, then the parameters'.
std::vector<at::Tensor> plain_gradients(nn::Sequential model, const at::Tensor& input) {
  const at::Tensor x = input.detach().clone().requires_grad_();
  square({model->forward(x)}, {}).backward();
  std::vector<at::Tensor> gradients = {x.grad()};
  for (const at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

// Returns the gradients of a pipeline, by forward and backward or by a step.
std::vector<at::Tensor> piped_gradients(nn::Sequential model, const GPipeOptions& options,
                                        const at::Tensor& input, bool step) {
  GPipe pipe(model, options);
  const at::Tensor x = input.detach()
                           .to(pipe->devices().front(), /*non_blocking=*/false, /*copy=*/true)
                           .requires_grad_();
  if (step) {
    pipe->step({x}, {}, square);
  } else {
    square({pipe->forward(x)}, {}).backward();
  }
  std::vector<at::Tensor> gradients = {x.grad()};
  for (const at::Tensor& parameter : pipe->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_close(const std::vector<at::Tensor>& want, const std::vector<at::Tensor>& have) {
  ASSERT_EQ(want.size(), have.size());
  for (size_t k = 0; k < want.size(); ++k) {
    ASSERT_TRUE(have[k].defined()) << k;
    // The plain model runs on the host, on whole batches, so its sums are rounded differently.
    EXPECT_TRUE(torch::allclose(want[k], have[k].cpu(), /*rtol=*/1e-3, /*atol=*/1e-4)) << k;
  }
}

using Device = testing::DeviceTest;

TEST_F(Device, ConvolutionsWithASkipComputeTheSameUnderEveryBalanceAndMode) {
  testing::manual_seed(1);
  const at::Tensor input = torch::randn({6, 2, 8, 8});
  const auto want = plain_gradients(convolutions_with_a_skip(), input);
  for (int64_t partitions = 1; partitions <= 3; ++partitions) {
    for (const std::vector<int64_t>& balance : testing::all_balances(3, partitions)) {
      for (Checkpoint mode : kModes) {
        for (bool step : {false, true}) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) +
                       (step ? " step" : " forward"));
          expect_close(
              want,
              piped_gradients(
                  convolutions_with_a_skip(),
                  GPipeOptions(balance).devices(devices(balance.size())).chunks(3).checkpoint(mode),
                  input, step));
        }
      }
    }
  }
}

// If the stages in between are on another device, values go in both directions between host and
// device: activations, a skip past the stage between, and the gradients of all of them.
TEST_F(Device, StagesOnTheHostAndOnTheDeviceWorkTogether) {
  testing::manual_seed(1);
  const at::Tensor input = torch::randn({6, 2, 8, 8});
  const auto want = plain_gradients(convolutions_with_a_skip(), input);
  for (bool host_outside : {true, false}) {
    const c10::Device outside = host_outside ? c10::Device(c10::kCPU) : device();
    const c10::Device inside = host_outside ? device() : c10::Device(c10::kCPU);
    for (Checkpoint mode : kModes) {
      for (bool step : {false, true}) {
        SCOPED_TRACE(std::string(host_outside ? "host outside " : "host inside ") + to_text(mode));
        expect_close(want, piped_gradients(convolutions_with_a_skip(),
                                           GPipeOptions({1, 1, 1})
                                               .devices({outside, inside, outside})
                                               .chunks(3)
                                               .checkpoint(mode),
                                           input, step));
      }
    }
  }
}

// KeepPair takes and returns pairs. SlowSecond has a backward in which the gradient of the second
// value comes late.
struct KeepPairImpl : nn::Module {
  Tensors forward(Tensors pair) { return {pair[0] * 1, pair[1] * 1}; }
};
TORCH_MODULE(KeepPair);

struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    testing::slow_work(gradients[0].device());
    return {gradients[0] * 5};
  }
};

struct SlowSecondImpl : nn::Module {
  at::Tensor forward(Tensors pair) { return pair[0] + SlowBackward::apply(pair[1]); }
};
TORCH_MODULE(SlowSecond);

TEST_F(Device, ASlowGradientOfAPairsSecondValueIsWaitedFor) {
  constexpr int64_t kChunks = 32;
  GPipe pipe(
      nn::Sequential(KeepPair(), SlowSecond()),
      GPipeOptions({1, 1}).devices(devices(2)).chunks(kChunks).checkpoint(Checkpoint::kNever));
  const at::Tensor a = torch::rand({kChunks, 1}, device()).requires_grad_();
  const at::Tensor b = torch::rand({kChunks, 1}, device()).requires_grad_();
  pipe->forward(Tensors{a, b})[0].sum().backward();
  EXPECT_THAT(a.grad().cpu(), EqualsBitwise(torch::ones({kChunks, 1})));
  EXPECT_THAT(b.grad().cpu(), EqualsBitwise(torch::full({kChunks, 1}, 5.0)));
}

// This is case 154 of torchgpipe's tests: copies of a model on several threads of one device, as
// data parallelism has them, must not get each other's skips.
TEST_F(Device, SkipsOfCopiesOfAModelOnSeveralThreadsDoNotMeet) {
  const testing::HostWaitsAllowed waits;  // these threads wait for their results
  constexpr int kThreads = 2;
  std::vector<at::Tensor> outputs(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back([&outputs, k] {
      nn::Sequential model(skip::testing::stash_layer({"x"}), skip::testing::pop_layer({"x"}));
      at::Tensor y = torch::full({4, 4}, static_cast<double>(k + 1), device());
      for (int round = 0; round < 50; ++round)
        y = model->forward(y) / 2;  // pop adds what was stashed, so y doubles
      outputs[k] = on_host(y);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int k = 0; k < kThreads; ++k) {
    EXPECT_THAT(outputs[k], EqualsBitwise(torch::full({4, 4}, static_cast<double>(k + 1))));
  }
}

TEST_F(Device, DropoutDropsTheSameInForwardAndRecompute) {
  for (int repetition = 0; repetition < 5; ++repetition) {
    GPipe pipe(nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.5)),
               GPipeOptions({1, 1}).devices(devices(2)).chunks(10).checkpoint(Checkpoint::kAlways));
    const at::Tensor x = torch::ones({100, 100}, device()).requires_grad_();
    const at::Tensor y = pipe->forward(x);
    y.sum().backward();
    const at::Tensor dropped = y.cpu() == 0;
    EXPECT_THAT(dropped, EqualsBitwise(x.grad().cpu() == 0));
    const double share = dropped.to(torch::kDouble).mean().item<double>();
    EXPECT_NEAR(share, 0.75, 0.05);  // 10,000 numbers: 0.05 is 11 standard deviations
  }
}

// A layer that multiplies by numbers that it draws on its input's device.
struct NoiseImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    const at::Tensor order = torch::randperm(x.size(1), x.options().dtype(torch::kLong));
    return (x * torch::rand(x.sizes(), x.options())).index_select(1, order);
  }
};
TORCH_MODULE(Noise);

TEST_F(Device, ResultsOfRandomLayersDependOnTheSeedAlone) {
  auto run = [](const std::vector<int64_t>& balance, Checkpoint mode) {
    testing::manual_seed(5);
    nn::Sequential model(nn::Linear(8, 8), nn::Dropout(0.5), Noise(), nn::Dropout(0.3));
    GPipe pipe(model,
               GPipeOptions(balance).devices(devices(balance.size())).chunks(4).checkpoint(mode));
    testing::manual_seed(6);
    const at::Tensor x = torch::ones({8, 8}, device()).requires_grad_();
    pipe->forward(x).sum().backward();
    return x.grad().cpu();
  };
  const at::Tensor want = run({4}, Checkpoint::kNever);
  for (Checkpoint mode : kModes) {
    EXPECT_THAT(run({2, 2}, mode), EqualsBitwise(want)) << to_text(mode);
    EXPECT_THAT(run({1, 1, 2}, mode), EqualsBitwise(want)) << to_text(mode);
  }
}

TEST_F(Device, DeferredBatchNormHasTheStatisticsOfTheWholeBatch) {
  auto make = [] {
    testing::manual_seed(3);
    nn::Sequential model(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::ReLU(), nn::BatchNorm1d(6));
    model->to(torch::kDouble);
    return model;
  };
  const at::Tensor input = torch::randn({12, 4}, torch::kDouble) * 3 + 1;
  // Only the first batch norm is compared, because its input is the same as in the plain model. The
  // input of the second one was normalized by micro-batch.
  nn::Sequential plain = make();
  plain->forward(input);
  GPipe pipe(make(), GPipeOptions({1, 3}).devices(devices(2)).chunks(4).deferred_batch_norm(true));
  pipe->forward(input.to(device()).requires_grad_()).sum().backward();
  const auto want = plain->named_buffers();
  const auto have = pipe->named_buffers();
  for (const char* name : {"1.running_mean", "1.running_var"}) {
    EXPECT_EQ(have[name].device(), device(1)) << name;
    // Sums over micro-batches are rounded differently from a sum over the batch. They are in double
    // here, so the tolerance is small.
    EXPECT_TRUE(torch::allclose(want[name], have[name].cpu(), /*rtol=*/0, /*atol=*/1e-6)) << name;
  }
  EXPECT_EQ(have["1.num_batches_tracked"].item<int64_t>(), 1);
}

// Makes a value that the first stage hands to the second stage beside its output.
using Hand = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)>;

struct HandsOverImpl : nn::Module, skip::Skippable {
  explicit HandsOverImpl(Hand hand)
      : Skippable({"skip"}, {}),
        hand(std::move(hand)),
        weight(register_parameter("weight", torch::rand({1, 37}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x * weight;
    stash("skip", hand(y, weight));
    return y;
  }
  Hand hand;
  at::Tensor weight;
};
TORCH_MODULE(HandsOver);

struct TakesMeanImpl : nn::Module, skip::Skippable {
  TakesMeanImpl() : Skippable({}, {"skip"}) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor handed = pop("skip");
    return x * handed.mean() + x * handed.sum(0).mean();
  }
};
TORCH_MODULE(TakesMean);

// The order in which kernels add up depends on strides and on the alignment in memory. So both must
// be kept when a value goes to another device.
TEST_F(Device, SumsOverViewsFromAnotherDeviceAreThoseOnOneDevice) {
  const std::vector<std::pair<const char*, Hand>> hands = {
      {"expanded",
       [](const auto& x, const auto& w) {
         return w.expand({x.size(0), -1});
       }},
      {"narrow", [](const auto& x, const auto&) { return x.narrow(-1, 0, 2); }},
      {"half", [](const auto& x, const auto&) { return x.narrow(-1, 3, 19); }},
      {"transposed", [](const auto& x, const auto&) { return x.t(); }},
      {"rows", [](const auto& x, const auto&) { return x.narrow(0, 1, x.size(0) - 1); }},
      {"every second row", [](const auto& x, const auto&) { return x.slice(0, 1, x.size(0), 2); }},
  };
  for (const auto& [name, hand] : hands) {
    for (Checkpoint mode : kModes) {
      SCOPED_TRACE(std::string(name) + " " + to_text(mode));
      const auto gradients = [&, &hand = hand](const std::vector<c10::Device>& where) {
        testing::manual_seed(1);
        return piped_gradients(nn::Sequential(HandsOver(hand), TakesMean()),
                               GPipeOptions({1, 1}).devices(where).chunks(2).checkpoint(mode),
                               torch::rand({46, 37}), /*step=*/true);
      };
      const auto want = gradients({device(0), device(0)});
      const auto have = gradients(devices(2));
      ASSERT_EQ(want.size(), have.size());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_THAT(on_host(have[k]), EqualsBitwise(on_host(want[k]))) << k;
      }
    }
  }
}

struct FailsOnceImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    if (!failed) {
      failed = true;
      throw std::runtime_error("broken layer");
    }
    return x * 2;
  }
  bool failed = false;
};
TORCH_MODULE(FailsOnce);

TEST_F(Device, AFailureReachesTheCallerAndThePipelineWorksOn) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), FailsOnce(), nn::Linear(4, 2)),
             GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(2));
  const at::Tensor x = torch::randn({4, 4}, device());
  try {
    pipe->step({x}, {}, square);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("broken layer"));
    EXPECT_THAT(error.what(), HasSubstr("stage 1"));
  }
  EXPECT_GT(pipe->step({x}, {}, square).loss, 0);
}

// The workers compute on the streams that are current where forward() and step() are called, so x
// is read after it was written.
TEST_F(Device, InputsAndResultsAreInTheOrderOfTheCallersStreams) {
  GPipe pipe(convolutions_with_a_skip(),
             GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(3).checkpoint(Checkpoint::kAlways));
  testing::manual_seed(1);
  const at::Tensor input = torch::randn({6, 2, 8, 8});
  const at::Tensor want = on_host(pipe->forward(input.to(device())));
  const testing::OtherStreamsScope other;
  const at::Tensor x = input.to(device());
  testing::slow_work(device());
  x.mul_(2).div_(2);
  EXPECT_THAT(on_host(pipe->forward(x)), EqualsBitwise(want));
  const double loss = pipe->step({x}, {}, square).loss;
  EXPECT_GT(loss, 0);
}

// A layer that returns its input as another tensor over the same memory.
struct ViewImpl : nn::Module {
  at::Tensor forward(at::Tensor x) { return x.view({x.size(0), -1}); }
};
TORCH_MODULE(View);

TEST_F(Device, AnInputMayBeChangedRightAfterTheCall) {
  for (const bool stashed : {false, true}) {
    for (const bool step : {false, true}) {
      SCOPED_TRACE(std::string(stashed ? "stashed" : "viewed") + (step ? ", step" : ", forward"));
      nn::Sequential model;
      if (stashed) {
        model = nn::Sequential(skip::testing::stash_layer({"x"}), View(), nn::Linear(4, 4),
                               skip::testing::pop_layer({"x"}));
      } else {
        model = nn::Sequential(View(), View(), nn::Linear(4, 4), nn::Tanh());
      }
      GPipe pipe(
          model,
          GPipeOptions({1, 1, 1, 1}).devices(devices(4)).chunks(2).checkpoint(Checkpoint::kNever));
      // The input requires a gradient, because a value without a gradient would leave the stage as
      // a copy.
      const at::Tensor x = torch::full({4, 4}, 0.5, device()).requires_grad_();
      at::Tensor y;
      if (step) {
        y = pipe->step({x}, {}, square, StepOptions().keep_outputs(true)).outputs[0];
      } else {
        y = pipe->forward(x);
      }
      torch::NoGradGuard no_grad;
      x.fill_(1000);
      EXPECT_LT(on_host(y).detach().abs().max().item<double>(), 10);
    }
  }
}

TEST_F(Device, AnInputMayBeChangedRightAfterAFailure) {
  GPipe pipe(nn::Sequential(View(), View(), FailsOnce(), nn::Tanh()),
             GPipeOptions({1, 1, 1, 1}).devices(devices(4)).chunks(2));
  const at::Tensor x = torch::full({4, 4}, 0.5, device()).requires_grad_();
  EXPECT_THROW(pipe->forward(x), std::runtime_error);
  torch::NoGradGuard no_grad;
  x.fill_(1000);  // if a copy were still reading x, the fake accelerator would report a race
  x.fill_(0.5);
  EXPECT_THAT(on_host(pipe->forward(x)), EqualsBitwise(torch::full({4, 4}, 1.0).tanh()));
}

// Forward and backward run under different current streams. The gradients are used on the streams
// of the backward, and must have the same bits as with one stream.
TEST_F(Device, BackwardMayRunOnOtherStreamsThanForward) {
  testing::manual_seed(1);
  const at::Tensor input = torch::randn({6, 2, 8, 8});
  for (Checkpoint mode : kModes) {
    for (const bool forward_on_others : {false, true}) {
      SCOPED_TRACE(std::string(to_text(mode)) + (forward_on_others ? " forward" : " backward"));
      auto gradients = [&](bool same) {
        GPipe pipe(convolutions_with_a_skip(),
                   GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(3).checkpoint(mode));
        const at::Tensor x = testing::copy_on(device(), input).requires_grad_();
        std::optional<testing::OtherStreamsScope> other;
        if (forward_on_others && !same) other.emplace();
        at::Tensor loss;
        {
          at::Tensor scaled = x * 2;
          loss = pipe->forward(scaled).pow(2).mean();
        }
        if (other) {
          other.reset();
        } else if (!same) {
          other.emplace();
        }
        // The parameters' gradients are set before the backward, on the streams of the backward, so
        // the pipeline adds to them.
        for (const at::Tensor& parameter : pipe->parameters()) {
          parameter.mutable_grad() = torch::zeros_like(parameter);
        }
        loss.backward();
        std::vector<at::Tensor> results = {on_host(x.grad() * 1)};
        for (const at::Tensor& p : pipe->parameters()) results.push_back(on_host(p.grad() * 1));
        // The memory that is freed here is reused at once. A stage that still reads it would get
        // NaN.
        loss = at::Tensor();
        for (int k = 0; k < 3; ++k) torch::full({6, 2, 8, 8}, NAN, device(k));
        return results;
      };
      EXPECT_EQ(testing::bitwise_difference(gradients(true), gradients(false)), "");
    }
  }
}

// A layer that works on a stream of its own, like a layer that overlaps two branches. It reads a
// weight that another layer has registered.
struct OwnStreamImpl : nn::Module {
  explicit OwnStreamImpl(at::Tensor weight) : weight(std::move(weight)) {}
  at::Tensor forward(at::Tensor x) {
    if (x.device().is_cpu()) return at::linear(x, weight).tanh();
    const c10::impl::VirtualGuardImpl impl(x.device().type());
    const c10::Stream here = impl.getStream(x.device());
    const c10::Stream own = impl.getStreamFromGlobalPool(x.device());
    internal::follow(own, here);
    internal::use_on(x, own);
    at::Tensor y;
    {
      const internal::StreamScope scope(own);
      y = at::linear(x, weight).tanh();
    }
    internal::follow(here, own);
    internal::use_on(y, here);
    return y;
  }
  at::Tensor weight;
};
TORCH_MODULE(OwnStream);

TEST_F(Device, LayersMayHaveStreamsOfTheirOwn) {
  auto gradients = [](bool on_devices, Checkpoint mode, bool step) {
    testing::manual_seed(1);
    nn::Linear first(4, 4);
    nn::Sequential model(first, nn::Tanh(), OwnStream(first->weight), nn::Linear(4, 4));
    const c10::Device where = on_devices ? device() : c10::Device(c10::kCPU);
    GPipe pipe(model,
               GPipeOptions({1, 1, 2}).devices({where, where, where}).chunks(3).checkpoint(mode));
    model->ptr<OwnStreamImpl>(2)->weight = first->weight;  // the weight is on the device now
    const at::Tensor x = testing::copy_on(where, torch::randn({6, 4})).requires_grad_();
    if (step) {
      pipe->step({x}, {}, square);
    } else {
      square({pipe->forward(x)}, {}).backward();
    }
    std::vector<at::Tensor> results = {on_host(x.grad())};
    for (const at::Tensor& p : pipe->parameters()) results.push_back(on_host(p.grad()));
    return results;
  };
  for (Checkpoint mode : kModes) {
    for (const bool step : {false, true}) {
      expect_close(gradients(false, mode, step), gradients(true, mode, step));
    }
  }
}

// The input's gradient of this stage is also the gradient of a skip, because an addition gives one
// gradient to both its inputs. One of the two is copied to another device. The other one stays, and
// the previous stage adds to it. So it may do that only after the copy.
struct BlockImpl : nn::Module {
  BlockImpl()
      : a(register_module("a", nn::Linear(4, 4))), b(register_module("b", nn::Linear(4, 4))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor h = a->forward(x);
    return h + b->forward(h.relu());
  }
  nn::Linear a, b;
};
TORCH_MODULE(Block);

TEST_F(Device, AGradientThatIsCopiedIsNotAddedToMeanwhile) {
  auto gradient = [](const std::vector<c10::Device>& where, bool step) {
    testing::manual_seed(1);
    GPipe pipe(nn::Sequential(skip::testing::stash_layer({"x"}), Block(),
                              skip::testing::pop_layer({"x"}), nn::Linear(4, 4)),
               GPipeOptions({1, 1, 2}).devices(where).chunks(2));
    const at::Tensor x = torch::ones({4, 4}, where[0]).requires_grad_();
    if (step) {
      pipe->step({x}, {}, square);
    } else {
      square({pipe->forward(x)}, {}).backward();
    }
    return on_host(x.grad());
  };
  for (const bool step : {false, true}) {
    expect_close({gradient({c10::kCPU, c10::kCPU, c10::kCPU}, step)},
                 {gradient({device(0), device(1), device(1)}, step)});
  }
}

// A function that computes its forward again in its backward, including dropout.
struct Redraw : torch::autograd::Function<Redraw> {
  static at::Tensor mask(const at::Tensor& x) { return torch::bernoulli(torch::full_like(x, 0.5)); }
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * mask(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * mask(gradients[0])};
  }
};
struct RedrawingImpl : nn::Module {
  at::Tensor forward(at::Tensor x) { return Redraw::apply(x); }
};
TORCH_MODULE(Redrawing);

TEST_F(Device, UsersCodeInBackwardDrawsWhatItsForwardDrew) {
  for (Checkpoint mode : kModes) {
    GPipe pipe(nn::Sequential(Redrawing(), Redrawing()),
               GPipeOptions({1, 1}).devices(devices(2)).chunks(2).checkpoint(mode));
    const at::Tensor x = torch::ones({10, 10}, device()).requires_grad_();
    const at::Tensor y = pipe->forward(x);
    y.sum().backward();
    EXPECT_THAT(on_host(x.grad()), EqualsBitwise(on_host(y.detach()))) << to_text(mode);
  }
}

// A function whose backward runs a pipeline's backward. For a GPU, it does so on a thread of
// autograd for which the stages' own backward would wait.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            GPipe* pipe) {
    context->saved_data["pipe"] = reinterpret_cast<int64_t>(pipe);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const c10::AutoGradMode on(true);
    GPipe& pipe = *reinterpret_cast<GPipe*>(context->saved_data["pipe"].toInt());
    pipe->forward(torch::ones({4, 4}, gradients[0].device())).sum().backward();
    return {gradients[0], at::Tensor()};
  }
};

TEST_F(Device, ABackwardInsideABackwardWorksOrIsRefused) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), Redrawing(), nn::Linear(4, 4), Redrawing()),
             GPipeOptions({2, 2}).devices({device(), device()}).chunks(2));
  const at::Tensor x = torch::ones({4, 4}, device()).requires_grad_();
  const at::Tensor y = Nested::apply(x, &pipe).sum();
  if (testing::for_gpus()) {
    EXPECT_THAT([&] { y.backward(); }, ::testing::ThrowsMessage<std::exception>(
                                           HasSubstr("called inside another backward")));
  } else {
    y.backward();
    EXPECT_TRUE(pipe->parameters().front().grad().defined());
  }
}

// A layer that moves its output to another device.
struct MoveImpl : nn::Module {
  explicit MoveImpl(c10::Device target) : target(target) {}
  at::Tensor forward(at::Tensor x) { return (x * 2).to(target); }
  c10::Device target;
};
TORCH_MODULE(Move);

TEST_F(Device, ALayerMayMoveItsOutputToAnotherDevice) {
  const testing::HostWaitsAllowed waits;
  for (const c10::Device target : {device(1), c10::Device(c10::kCPU)}) {
    for (Checkpoint mode : kModes) {
      GPipe pipe(nn::Sequential(nn::Tanh(), Move(target), nn::Tanh()),
                 GPipeOptions({2, 1}).devices(devices(2)).chunks(2).checkpoint(mode));
      const at::Tensor x = torch::full({4, 4}, 0.5, device()).requires_grad_();
      pipe->forward(x).sum().backward();
      const at::Tensor plain = torch::full({4, 4}, 0.5).requires_grad_();
      (plain.tanh() * 2).tanh().sum().backward();
      expect_close({plain.grad()}, {on_host(x.grad())});
    }
  }
}

// A layer that uses another device than its stage's, as layers and losses may.
struct AddFarImpl : nn::Module {
  explicit AddFarImpl(at::Tensor far) : far(std::move(far)) {}
  at::Tensor forward(at::Tensor x) { return x + far.to(x.device(), /*non_blocking=*/true); }
  at::Tensor far;
};
TORCH_MODULE(AddFar);

TEST_F(Device, OtherDevicesThanAStagesAreInTheOrderOfTheCallersStreamsToo) {
  const testing::OtherStreamsScope other;
  testing::slow_work(device(2));
  const at::Tensor far = torch::ones({4, 4}, device(2)) * 3;
  GPipe pipe(nn::Sequential(AddFar(far.narrow(0, 0, 2)), nn::Linear(4, 4)),
             GPipeOptions({1, 1}).devices(devices(2)).chunks(2));
  const at::Tensor metric = torch::zeros({}, device(0));
  const at::Tensor x = torch::ones({4, 4}, device());
  pipe->step({x}, {}, [&](const Tensors& outputs, const Tensors&) {
    metric.add_(outputs[0].detach().to(device(0), /*non_blocking=*/true).abs().sum());
    return outputs[0].pow(2).mean();
  });
  far.zero_();
  EXPECT_GT(on_host(metric * 1).item<double>(), 0);
}

// A layer whose output is neither dense nor in the usual order of dimensions.
struct GapsImpl : nn::Module {
  at::Tensor forward(at::Tensor x) { return (x * 2).transpose(1, 2).slice(1, 0, 4); }
};
TORCH_MODULE(Gaps);

TEST_F(Device, ValuesOfAnyLayoutTravelWithoutAWaitOfTheHost) {
  for (const bool to_host : {true, false}) {
    const std::vector<c10::Device> where = {to_host ? device() : c10::Device(c10::kCPU),
                                            to_host ? c10::Device(c10::kCPU) : device()};
    GPipe pipe(nn::Sequential(Gaps(), nn::Tanh()), GPipeOptions({1, 1}).devices(where).chunks(2));
    const at::Tensor plain = torch::randn({4, 3, 5}).requires_grad_();
    const at::Tensor x = testing::copy_on(where[0], plain).requires_grad_();
    const at::Tensor y = pipe->forward(x);
    y.sum().backward();
    const at::Tensor want = (plain * 2).transpose(1, 2).slice(1, 0, 4).tanh();
    want.sum().backward();
    expect_close({want.detach(), plain.grad()}, {on_host(y.detach()), on_host(x.grad())});
  }
}

// A layer that records the strides of its input.
struct LookImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    seen = x.strides().vec();
    return x.tanh();
  }
  std::vector<int64_t> seen;
};
TORCH_MODULE(Look);

// The order in which kernels add up depends on the gaps of a view, so its copy must have them.
TEST_F(Device, AViewKeepsItsGapsOnTheHostToo) {
  const c10::Device host(c10::kCPU);
  for (const std::vector<c10::Device>& where :
       {std::vector<c10::Device>{device(), host}, {host, device()}, devices(2)}) {
    Look look;
    GPipe pipe(nn::Sequential(Gaps(), look), GPipeOptions({1, 1}).devices(where).chunks(1));
    const at::Tensor x = testing::copy_on(where[0], torch::randn({4, 3, 5}));
    pipe->forward(x);
    EXPECT_EQ(look->seen, (x * 2).transpose(1, 2).slice(1, 0, 4).strides().vec()) << where[1];
  }
}

TEST_F(Device, AskedGradientsAreInTheOrderOfTheCallersStreams) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
             GPipeOptions({1, 1}).devices(devices(2)).chunks(2));
  const at::Tensor x = torch::ones({4, 4}, device()).requires_grad_();
  const at::Tensor loss = pipe->forward(x).sum();
  const std::vector<at::Tensor> parameters = pipe->parameters();
  const std::vector<c10::Stream> streams = {internal::current_stream(device(0)),
                                            internal::current_stream(device(1))};
  const testing::OtherStreamsScope other;
  auto gradients = torch::autograd::grad({loss}, {x, parameters.front(), parameters.back()});
  std::vector<at::Tensor> used;
  for (size_t k = 0; k < gradients.size(); ++k) {
    const c10::Device where = gradients[k].device();
    testing::slow_work(where);
    used.push_back(gradients[k] * 1);
    const auto shape = gradients[k].sizes().vec();
    gradients[k] = at::Tensor();
    // The memory of the gradient is free now. If it goes to another tensor on the stage's stream,
    // that tensor must not overwrite the gradient before it was used.
    const internal::StreamScope before(streams.at(static_cast<size_t>(where == device(1))));
    torch::full(shape, NAN, where);
  }
  for (const at::Tensor& gradient : used) {
    EXPECT_GT(on_host(gradient).abs().sum().item<double>(), 0);
  }
}

// A layer whose output depends on the number of its calls.
struct CountingImpl : nn::Module {
  at::Tensor forward(at::Tensor x) { return x.tanh() * static_cast<double>(++calls); }
  int calls = 0;
};
TORCH_MODULE(Counting);

// Repeats the call until it throws, and returns the message. The error may come late, because the
// result of a device's computation is known only later.
std::string late_error(const std::function<void()>& call) {
  for (int k = 0; k < 50; ++k) {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "";
}

TEST_F(Device, ARecomputeOfAnotherFunctionIsAnErrorAtOnceOrInALaterCall) {
  for (const bool step : {false, true}) {
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), Counting(), nn::Linear(4, 2)),
               GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(2));
    const at::Tensor x = testing::copy_on(device(), torch::randn({4, 4}));
    EXPECT_THAT(late_error([&] {
                  if (step) {
                    pipe->step({x}, {}, square);
                  } else {
                    square({pipe->forward(x)}, {}).backward();
                  }
                }),
                HasSubstr("the recompute of stage 1"));
  }
}

TEST_F(Device, AnOptimizerBetweenForwardAndBackwardIsAnErrorAtOnceOrInALaterCall) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 2)),
             GPipeOptions({1, 1, 1}).devices(devices(3)).chunks(2));
  const at::Tensor x = testing::copy_on(device(), torch::randn({4, 4}));
  pipe->step({x}, {}, square);
  EXPECT_THAT(late_error([&] {
                const at::Tensor output = pipe->forward(x);
                // The parameters are changed as torch::optim::SGD changes them.
                for (const at::Tensor& parameter : pipe->parameters()) {
                  parameter.data().sub_(parameter.grad(), 10);
                }
                square({output}, {}).backward();
              }),
              HasSubstr("as optimizers do"));
  // An error is forgotten once it is reported. Some answers to the last calls may still be on their
  // way. The next call reports them together.
  if (testing::for_gpus()) {
    for (const c10::Device& used : devices(3)) {
      c10::impl::VirtualGuardImpl(used.type()).synchronizeDevice(used.index());
    }
    try {
      pipe->step({x}, {}, square);
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("as optimizers do"));
    }
  }
  EXPECT_NO_THROW(pipe->step({x}, {}, square));
}

TEST_F(Device, WhatIsLoadedGoesWhereThePartitionsAre) {
  auto make = [](const std::vector<int64_t>& balance, const std::vector<c10::Device>& where) {
    return GPipe(nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Linear(4, 2)),
                 GPipeOptions(balance).devices(where).chunks(2));
  };
  const std::string file = ::testing::TempDir() + "/pipe.pt";
  GPipe saved = make({2, 1}, devices(2));
  const at::Tensor x = testing::copy_on(device(), torch::randn({4, 4}));
  saved->step({x}, {}, square);
  torch::save(saved, file);
  nn::Sequential plain(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Linear(4, 2));
  torch::load(plain, file, c10::Device(c10::kCPU));
  std::vector<c10::Device> turned = devices(3);
  std::reverse(turned.begin(), turned.end());
  for (const std::vector<c10::Device>& where : {devices(3), turned}) {
    for (const bool to_cpu : {false, true}) {
      GPipe pipe = make({1, 1, 1}, where);
      pipe->step({testing::copy_on(where[0], x)}, {}, square);  // makes gradients
      if (to_cpu) {
        torch::load(pipe, file, c10::Device(c10::kCPU));
      } else {
        torch::load(pipe, file);
      }
      for (int64_t k = 0; k < 3; ++k) {
        for (const at::Tensor& parameter : pipe[k]->parameters()) {
          EXPECT_EQ(parameter.device(), where[k]);
          EXPECT_EQ(parameter.grad().device(), where[k]);
        }
        for (const at::Tensor& buffer : pipe[k]->buffers()) EXPECT_EQ(buffer.device(), where[k]);
      }
      for (const auto& parameter : plain->named_parameters()) {
        EXPECT_THAT(on_host(pipe->named_parameters()[parameter.key()]),
                    EqualsBitwise(parameter.value()));
      }
      EXPECT_NO_THROW(pipe->step({testing::copy_on(where[0], x)}, {}, square));
    }
  }
}

TEST_F(Device, GradientsFromBeforeThePipelineGoAlong) {
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 2));
  const at::Tensor x = torch::randn({4, 4});
  square({model->forward(x)}, {}).backward();
  GPipe pipe(model, GPipeOptions({1, 1}).devices(devices(2)).chunks(2));
  for (const at::Tensor& parameter : pipe->parameters()) {
    EXPECT_EQ(parameter.grad().device(), parameter.device());
  }
  EXPECT_NO_THROW(pipe->step({testing::copy_on(device(), x)}, {}, square));
}

TEST_F(Device, TrainingFollowsThePlainModel) {
  auto make = [] {
    testing::manual_seed(4);
    return nn::Sequential(nn::Linear(4, 16), nn::Tanh(), nn::Linear(16, 3));
  };
  const at::Tensor x = torch::randn({12, 4});
  const at::Tensor y = torch::arange(12).remainder(3);
  auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::cross_entropy(outputs[0], targets[0]);
  };
  auto descend = [](const std::vector<at::Tensor>& parameters) {
    torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters) {
      parameter.sub_(parameter.grad(), 0.5);
      parameter.mutable_grad().zero_();
    }
  };
  nn::Sequential plain = make();
  GPipe pipe(make(), GPipeOptions({1, 2}).devices(devices(2)).chunks(5));
  for (int i = 0; i < 10; ++i) {
    const at::Tensor want = loss({plain->forward(x)}, {y});
    want.backward();
    const double have = pipe->step({x.to(device(0))}, {y.to(device(1))}, loss).loss;
    // The plain model runs on the host, on whole batches, so its sums are rounded differently.
    EXPECT_NEAR(have, want.item<double>(), 1e-4) << i;
    descend(plain->parameters());
    descend(pipe->parameters());
  }
}

}  // namespace
}  // namespace gpipe
