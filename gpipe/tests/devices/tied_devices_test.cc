// Tests parameters that stages on several devices use, through TiedLayer. Results must be bitwise
// equal to those with all stages on one device of that kind. In tied_devices_test all stages are on
// the CPU, where nothing is copied.

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/own_backward.h"
#include "gpipe/testing/torch_seed.h"
#include "models/head_loss.h"
#include "models/transformer.h"
#include "models/transformer_options.h"
#include "tied/tied_layer.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::on_host;

constexpr int64_t kWidth = 8;
constexpr int64_t kRows = 8;
constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

struct FirstImpl : nn::Module {
  FirstImpl() : weight(register_parameter("weight", torch::randn({kWidth, kWidth}) * 0.3)) {}
  Tensor forward(const Tensor& x) { return x.matmul(weight); }
  Tensor weight;
};
TORCH_MODULE(First);

// A layer that uses the weight so often that the order of the sums matters.
struct LaterImpl : nn::Module, TiedLayer {
  LaterImpl(Tensor weight, int64_t uses) : weight(std::move(weight)), uses(uses) {}
  Tensor forward(Tensor x) {
    for (int64_t k = 0; k < uses; ++k) {
      const Tensor& now = weight;
      x = (x.matmul(k % 2 == 0 ? now.t() : now) + x * (0.3 + 0.1 * k)).tanh();
    }
    return x;
  }
  std::vector<Tensor> tied_parameters() const override { return {weight}; }
  void use_tied_parameters(const std::vector<Tensor>& parameters) override {
    weight = parameters.at(0);
  }
  Tensor weight;
  int64_t uses;
};
TORCH_MODULE(Later);

struct Model {
  nn::Sequential layers;
  First first{nullptr};
  std::vector<Later> later;
};

Model make_model() {
  testing::manual_seed(7);
  Model model;
  model.first = First();
  const Tensor weight = model.first->weight;
  model.later = {Later(weight, 1), Later(weight, 2), Later(weight, 1)};
  model.layers = nn::Sequential(model.first, nn::Linear(kWidth, kWidth), model.later[0],
                                nn::Linear(kWidth, kWidth), model.later[1], model.later[2]);
  return model;
}

const std::vector<int64_t> kBalance = {1, 1, 1, 1, 1, 1};

std::vector<c10::Device> devices_of(const std::vector<int64_t>& numbers) {
  std::vector<c10::Device> devices;
  for (const int64_t number : numbers) devices.push_back(testing::device(number));
  return devices;
}

const std::vector<std::vector<int64_t>> kSpread = {
    {0, 1, 2, 0, 1, 3}, {0, 1, 1, 1, 1, 0}, {1, 0, 2, 2, 2, 2}, {0, 0, 0, 1, 0, 1}};

Tensor square(const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); }

GPipeOptions options_on(const std::vector<int64_t>& numbers) {
  return GPipeOptions(kBalance).devices(devices_of(numbers)).chunks(4);
}

Tensor rows(const GPipe& pipe) {
  return testing::copy_on(pipe->devices().front(), torch::randn({kRows, kWidth}));
}

struct Training {
  std::function<GPipeOptions(GPipeOptions)> options = [](GPipeOptions given) { return given; };
  StepOptions step = StepOptions();
  bool by_step = true;
  std::function<void(GPipe&, Model&, int64_t)> before = nullptr;  // called before each step
};

// Returns the results after each of a few steps.
std::vector<Tensor> train(const std::vector<int64_t>& numbers, const Training& training,
                          std::vector<GraphUse>* use = nullptr) {
  Model model = make_model();
  GPipe pipe(model.layers, training.options(options_on(numbers)));
  torch::optim::SGD optimizer(pipe->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<Tensor> trace;
  testing::manual_seed(11);
  for (int64_t k = 0; k < 6; ++k) {
    if (training.before) training.before(pipe, model, k);
    const Tensor x = rows(pipe).requires_grad_();
    if (k % 3 != 1) optimizer.zero_grad();
    if (training.by_step) {
      trace.push_back(torch::tensor(pipe->step({x}, {}, square, training.step).loss, at::kDouble));
    } else {
      square({pipe->forward(x)}, {}).backward();
    }
    trace.push_back(on_host(x.grad()));
    for (const Tensor& parameter : pipe->parameters()) {
      const Tensor& gradient = parameter.grad();
      trace.push_back(gradient.defined() ? on_host(gradient).clone() : Tensor());
    }
    optimizer.step();
    for (const Tensor& parameter : pipe->parameters()) {
      trace.push_back(on_host(parameter.detach().clone()));
    }
    const c10::NoGradGuard no_grad;
    trace.push_back(on_host(pipe->forward(x)));
  }
  if (use != nullptr) *use = pipe->graph_use();
  return trace;
}

void expect_same_everywhere(const Training& training) {
  const std::vector<Tensor> want = train({0, 0, 0, 0, 0, 0}, training);
  for (const std::vector<int64_t>& numbers : kSpread) {
    SCOPED_TRACE(::testing::PrintToString(numbers));
    EXPECT_THAT(train(numbers, training), EqualsBitwise(want));
  }
}

using TiedDevices = testing::DeviceTest;

TEST_F(TiedDevices, TrainToTheBitsOfOneDeviceInEveryModeAndSchedule) {
  for (const Checkpoint mode : kModes) {
    for (const char* schedule : {"1f1b", "gpipe", "fill-drain", "zb-h1"}) {
      SCOPED_TRACE(std::string(to_text(mode)) + " " + schedule);
      Training training;
      training.options = [&](GPipeOptions options) { return options.checkpoint(mode); };
      training.step.schedule(schedule_by_name(schedule));
      expect_same_everywhere(training);
    }
  }
}

TEST_F(TiedDevices, ForwardAndBackwardDoToo) {
  for (const Checkpoint mode : kModes) {
    SCOPED_TRACE(to_text(mode));
    Training training;
    training.by_step = false;
    training.options = [&](GPipeOptions options) { return options.checkpoint(mode); };
    expect_same_everywhere(training);
  }
}

TEST_F(TiedDevices, SoDoSeveralStagesOnAWorkerAndGroups) {
  for (const auto& placement : {Placement::loop(3, 2), Placement::of({0, 1, 2, 2, 1, 0}),
                                Placement::of({0, 0, 0, 0, 0, 0})}) {
    SCOPED_TRACE(placement.to_text());
    for (const int64_t groups : {0, 2}) {
      Training training;
      training.options = [&](GPipeOptions options) {
        return options.placement(placement).groups(groups);
      };
      expect_same_everywhere(training);
    }
  }
}

TEST_F(TiedDevices, StepsOnOtherStreamsWaitForTheCopies) {
  std::optional<testing::OtherStreamsScope> streams;
  Training training;
  training.before = [&](GPipe& pipe, Model& model, int64_t k) {
    streams.reset();
    if (k % 2 == 1) streams.emplace();
    // The device is still computing the weight when the step begins, so the copies of the weight
    // must wait.
    const c10::NoGradGuard no_grad;
    testing::slow_work(pipe->devices().front());
    model.first->weight.mul_(0.9);
  };
  expect_same_everywhere(training);
}

TEST_F(TiedDevices, AFrozenWeightAndOneThatThawsAreSeen) {
  Training training;
  training.before = [](GPipe&, Model& model, int64_t k) {
    model.first->weight.set_requires_grad(k >= 2 && k != 4);
    if (k < 2 || k == 4)
      model.first->weight.mutable_grad() = torch::zeros_like(model.first->weight);
  };
  expect_same_everywhere(training);
}

TEST_F(TiedDevices, HooksSeeTheWholeGradientOfAMicroBatchOnce) {
  std::vector<std::vector<Tensor>> seen;
  for (const std::vector<int64_t>& numbers :
       {std::vector<int64_t>{0, 0, 0, 0, 0, 0}, kSpread[0], kSpread[2]}) {
    Model model = make_model();
    GPipe pipe(model.layers, options_on(numbers));
    std::vector<Tensor>& gradients = seen.emplace_back();
    model.first->weight.register_hook([&](const Tensor& gradient) {
      EXPECT_EQ(gradient.device(), model.first->weight.device());
      gradients.push_back(gradient.clone());
      return gradient * 2;
    });
    testing::manual_seed(11);
    pipe->step({rows(pipe)}, {}, square);
    gradients.push_back(model.first->weight.grad());
    for (Tensor& gradient : gradients) gradient = on_host(gradient);
  }
  EXPECT_EQ(seen[0].size(), 5u);
  EXPECT_THAT(seen[1], EqualsBitwise(seen[0]));
  EXPECT_THAT(seen[2], EqualsBitwise(seen[0]));
}

TEST_F(TiedDevices, AutogradGradGetsItAndASecondBackwardAddsIt) {
  std::vector<std::vector<Tensor>> seen;
  for (const std::vector<int64_t>& numbers : {std::vector<int64_t>{0, 0, 0, 0, 0, 0}, kSpread[0]}) {
    for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      Model model = make_model();
      GPipe pipe(model.layers, options_on(numbers).checkpoint(mode));
      testing::manual_seed(11);
      const Tensor loss = square({pipe->forward(rows(pipe))}, {});
      const auto named = torch::autograd::grad({loss}, {model.first->weight}, {},
                                               /*retain_graph=*/true);
      EXPECT_FALSE(model.first->weight.grad().defined());
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      seen.push_back({on_host(named[0]), on_host(model.first->weight.grad())});
    }
  }
  EXPECT_THAT(seen[2], EqualsBitwise(seen[0]));
  EXPECT_THAT(seen[3], EqualsBitwise(seen[1]));
}

TEST_F(TiedDevices, TheCallerSeesOneParameter) {
  Model model = make_model();
  GPipe pipe(model.layers, options_on(kSpread[0]));
  EXPECT_EQ(pipe->parameters().size(), 5u);
  const Tensor x = rows(pipe);
  for (int k = 0; k < 2; ++k) {
    pipe->step({x}, {}, square);
    for (const Later& later : model.later) {
      EXPECT_TRUE(later->weight.is_same(model.first->weight)) << "outside of calls";
    }
  }
  EXPECT_GT(pipe->clip_grad_norm_(1e-3), 0);
  std::stringstream file;
  torch::save(pipe, file);
  Model other = make_model();
  GPipe again(other.layers, options_on(kSpread[1]));
  {
    const c10::NoGradGuard no_grad;
    model.first->weight.mul_(3);
    (void)again->forward(x);
  }
  torch::load(again, file);
  Model third = make_model();
  GPipe saved(third.layers, options_on({0, 0, 0, 0, 0, 0}));
  const c10::NoGradGuard no_grad;
  const Tensor want = saved->forward(testing::copy_on(saved->devices().front(), x));
  EXPECT_THAT(on_host(again->forward(x)), EqualsBitwise(on_host(want)));
}

TEST_F(TiedDevices, EvaluationAndInferenceUseTheLastValues) {
  std::vector<std::vector<Tensor>> seen;
  for (const std::vector<int64_t>& numbers : {std::vector<int64_t>{0, 0, 0, 0, 0, 0}, kSpread[0]}) {
    Model model = make_model();
    GPipe pipe(model.layers, options_on(numbers));
    testing::manual_seed(11);
    const Tensor x = rows(pipe);
    std::vector<Tensor>& values = seen.emplace_back();
    for (int k = 0; k < 3; ++k) {
      {
        const c10::InferenceMode inference;
        values.push_back(on_host(pipe->forward(x)).clone());
      }
      values.push_back(torch::tensor(pipe->evaluate({x}, {}, square).loss, at::kDouble));
      pipe->step({x}, {}, square);
      const c10::NoGradGuard no_grad;
      model.first->weight.sub_(model.first->weight.grad(), 0.5);
    }
    pipe->zero_grad();
    pipe->to(at::kDouble);
    pipe->step({x.to(at::kDouble)}, {}, square);
    values.push_back(on_host(model.first->weight.grad()));
    pipe->to(at::kFloat);
    model.first->weight.set_data(model.first->weight.data().t());
    pipe->zero_grad();
    pipe->step({x}, {}, square);
    values.push_back(on_host(model.first->weight.grad()));
  }
  EXPECT_THAT(seen[1], EqualsBitwise(seen[0]));
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST_F(TiedDevices, AChangeBetweenForwardAndBackwardIsRefused) {
  if (!testing::for_gpus() || testing::gpu_count() < 2) GTEST_SKIP() << "needs two devices";
  Model model = make_model();
  std::vector<Checkpoint> modes(6, Checkpoint::kNever);
  modes[2] = Checkpoint::kAlways;  // this stage has only a copy
  GPipe pipe(model.layers, options_on(kSpread[0]).partition_checkpoints(modes));
  const Tensor x = rows(pipe);
  const Tensor loss = square({pipe->forward(x)}, {});
  {
    const c10::NoGradGuard no_grad;
    model.first->weight.mul_(2);
    (void)pipe->forward(x);
  }
  EXPECT_THAT(refusal([&] { loss.backward(); }),
              HasSubstr("the parameter '0.weight' has been modified by an inplace operation"));
}

// If a parameter was frozen after the forward, its gradient is dropped, as in LibTorch.
TEST_F(TiedDevices, AWeightMayBeFrozenBetweenForwardAndBackward) {
  std::vector<std::vector<Tensor>> seen;
  for (const std::vector<int64_t>& numbers :
       {std::vector<int64_t>{0, 0, 0, 0, 0, 0}, kSpread[0], kSpread[1]}) {
    for (const bool evaluates : {false, true}) {
      Model model = make_model();
      GPipe pipe(model.layers, options_on(numbers).checkpoint(Checkpoint::kNever));
      testing::manual_seed(11);
      const Tensor x = rows(pipe);
      const Tensor loss = square({pipe->forward(x)}, {});
      model.first->weight.set_requires_grad(false);
      if (evaluates) pipe->evaluate({x}, {}, square);
      loss.backward();
      EXPECT_FALSE(model.first->weight.grad().defined());
      std::vector<Tensor>& gradients = seen.emplace_back();
      for (const Tensor& parameter : pipe->parameters()) {
        gradients.push_back(on_host(parameter.grad()));
      }
    }
  }
  for (const std::vector<Tensor>& gradients : seen) EXPECT_THAT(gradients, EqualsBitwise(seen[0]));
}

// A layer that lets no gradient through, except that of its weight.
struct CutLaterImpl : LaterImpl {
  using LaterImpl::LaterImpl;
  Tensor forward(const Tensor& x) { return LaterImpl::forward(x.detach()); }
};
TORCH_MODULE(CutLater);

// The stage in the middle has the weight, too, and gets no gradient for its output. Still it must
// pass on the gradients for the weight that later stages send.
TEST_F(TiedDevices, AStageThatNoGradientReachesHandsOthersOn) {
  for (const Checkpoint mode : kModes) {
    std::vector<Tensor> seen;
    for (const std::vector<int64_t>& numbers :
         {std::vector<int64_t>{0, 0, 0}, std::vector<int64_t>{0, 1, 2}}) {
      testing::manual_seed(7);
      const First first;
      const Later later(first->weight, 1);
      const CutLater cut(first->weight, 1);
      GPipe pipe(nn::Sequential(first, later, cut),
                 GPipeOptions({1, 1, 1}).devices(devices_of(numbers)).chunks(4).checkpoint(mode));
      pipe->step({rows(pipe)}, {}, square);
      seen.push_back(on_host(first->weight.grad()));
    }
    EXPECT_THAT(seen[1], EqualsBitwise(seen[0])) << to_text(mode);
  }
}

// A layer that uses the weight in a backward of its own, as users' own checkpointing does.
struct OwnBackwardLaterImpl : LaterImpl {
  using LaterImpl::LaterImpl;
  Tensor forward(const Tensor& x) { return testing::OwnBackward::apply(x, weight); }
};
TORCH_MODULE(OwnBackwardLater);

TEST_F(TiedDevices, AGradientThatACopyAloneWouldGetIsRefused) {
  for (const std::vector<int64_t>& numbers :
       {std::vector<int64_t>{0, 0, 0}, std::vector<int64_t>{0, 0, 1}}) {
    const First first;
    const OwnBackwardLater later(first->weight, 1);
    GPipe pipe(nn::Sequential(first, nn::Linear(kWidth, kWidth), later),
               GPipeOptions({1, 1, 1}).devices(devices_of(numbers)).chunks(4));
    const Tensor x = rows(pipe);
    const std::string said = refusal([&] { pipe->step({x}, {}, square); });
    const bool is_copy = testing::device(0) != testing::device(numbers.back());
    EXPECT_THAT(said, HasSubstr(is_copy ? "a backward of its own towards the tied parameter "
                                          "'0.weight'"
                                        : "nothing was thrown"));
    EXPECT_TRUE(later->weight.is_same(first->weight));
  }
}

// A layer that changes its weight in its forward, as an embedding with max_norm does.
struct ClampedImpl : FirstImpl {
  Tensor forward(const Tensor& x) {
    const c10::NoGradGuard no_grad;
    weight.clamp_(-0.1, 0.1);
    return x.matmul(weight);
  }
};
TORCH_MODULE(Clamped);

// The copy is made when the run begins, so it would not have the change. That is refused also if
// nothing is recorded, when ModelState does not check. If all stages are on the host, there is no
// copy, and no error.
TEST_F(TiedDevices, AChangeInAForwardIsRefusedWhereCopiesDoNotHaveIt) {
  for (const c10::Device& last : {c10::Device(c10::kCPU), testing::device(0)}) {
    const Clamped first;
    const Later later(first->weight, 1);
    GPipe pipe(nn::Sequential(first, nn::Linear(kWidth, kWidth), later),
               GPipeOptions({1, 1, 1}).devices({c10::kCPU, c10::kCPU, last}).chunks(4));
    const Tensor x = torch::randn({kRows, kWidth});
    const std::string said =
        last.is_cpu() ? "nothing was thrown" : "the tied parameter '0.weight' was changed in place";
    EXPECT_THAT(refusal([&] { pipe->evaluate({x}, {}, square); }), HasSubstr(said));
    const c10::NoGradGuard no_grad;
    EXPECT_THAT(refusal([&] { (void)pipe->forward(x); }), HasSubstr(said));
  }
}

TEST_F(TiedDevices, WithGraphsTheStagesOfATiedWeightRunPlainly) {
  Training training;
  const std::vector<Tensor> want = train({0, 0, 0, 0, 0, 0}, training);
  training.options = [](GPipeOptions options) { return options.graphs(true); };
  std::vector<GraphUse> use;
  EXPECT_THAT(train(kSpread[0], training, &use), EqualsBitwise(want));
  if (!testing::for_gpus()) return;
  EXPECT_GT(use[1].replayed, 0);
  EXPECT_GT(use[3].replayed, 0);
  EXPECT_THAT(use[0].reason, HasSubstr("other stages use the parameter '0.weight'"));
  for (const size_t stage : {2, 4, 5}) {
    EXPECT_THAT(use[stage].reason, HasSubstr("it uses a parameter of another stage (TiedLayer)"));
  }
  for (const size_t stage : {0, 2, 4, 5}) EXPECT_EQ(use[stage].replayed, 0);
}

struct StubbornImpl : nn::Module, TiedLayer {
  explicit StubbornImpl(Tensor weight) : weight(std::move(weight)) {}
  Tensor forward(const Tensor& x) { return x.matmul(weight); }
  std::vector<Tensor> tied_parameters() const override { return {weight}; }
  Tensor weight;
};
TORCH_MODULE(Stubborn);

TEST_F(TiedDevices, ALayerThatTakesNoCopyIsRefusedAndSaysWhatToDo) {
  if (!testing::for_gpus() || testing::gpu_count() < 2) GTEST_SKIP() << "needs two devices";
  const First first;
  const nn::Sequential model(first, nn::Tanh(), Stubborn(first->weight));
  EXPECT_THAT(refusal([&] {
                GPipe(model, GPipeOptions({1, 1, 1}).devices(devices_of({0, 0, 1})));
              }),
              AllOf(HasSubstr("layer 2 ('2') on"), HasSubstr("use_tied_parameters")));
  EXPECT_NO_THROW(GPipe(model, GPipeOptions({1, 1, 1}).devices(devices_of({0, 1, 0}))));
}

// A layer that refuses the parameters that it is given the first time.
struct ThrowingImpl : LaterImpl {
  using LaterImpl::LaterImpl;
  void use_tied_parameters(const std::vector<Tensor>& parameters) override {
    LaterImpl::use_tied_parameters(parameters);
    TORCH_CHECK(tries++ > 0, "not this one");
  }
  int64_t tries = 0;
};
TORCH_MODULE(Throwing);

TEST_F(TiedDevices, ALayerThatThrowsHasItsParameterAgain) {
  if (!testing::for_gpus() || testing::gpu_count() < 2) GTEST_SKIP() << "needs two devices";
  const First first;
  const Throwing later(first->weight, 1);
  const nn::Sequential model(first, nn::Tanh(), later);
  const GPipeOptions options = GPipeOptions({1, 1, 1}).devices(devices_of({0, 0, 1}));
  EXPECT_THAT(refusal([&] { GPipe(model, options); }), HasSubstr("not this one"));
  EXPECT_TRUE(later->weight.is_same(first->weight));
  GPipe pipe(model, options);
  pipe->step({rows(pipe)}, {}, square);
}

struct OuterImpl : nn::Module {
  explicit OuterImpl(Later inner) : inner(register_module("inner", std::move(inner))) {}
  Tensor forward(const Tensor& x) { return inner->forward(x); }
  Later inner;
};
TORCH_MODULE(Outer);

TEST_F(TiedDevices, OneModuleOnTwoDevicesIsRefused) {
  if (!testing::for_gpus() || testing::gpu_count() < 2) GTEST_SKIP() << "needs two devices";
  const First first;
  const Later later(first->weight, 1);
  const nn::Sequential model(first, Outer(later), Outer(later));
  EXPECT_THAT(refusal([&] {
                GPipe(model, GPipeOptions({1, 1, 1}).devices(devices_of({0, 0, 1})));
              }),
              AllOf(HasSubstr("layer 2 ('2')"), HasSubstr("a module of its own")));
  GPipe pipe(model, GPipeOptions({1, 1, 1}).devices(devices_of({0, 1, 1})));
  pipe->step({rows(pipe)}, {}, square);
  EXPECT_TRUE(first->weight.grad().defined());
}

// Trains GPT-2, whose head is tied to its embedding, on one device or with a part on each of four.
std::vector<Tensor> train_gpt2(bool on_one, bool head_in_loss) {
  models::TransformerOptions options(models::TransformerKind::kGPT2);
  options.vocab_size(24).max_positions(8).num_layers(2).hidden_size(16).num_heads(4);
  options.head_in_loss(head_in_loss);
  testing::manual_seed(3);
  const nn::Sequential model = models::transformer(options);
  const auto layers = static_cast<int64_t>(model->size());
  GPipe pipe(model, GPipeOptions({1, 2, 2, layers - 5})
                        .devices(devices_of(on_one ? std::vector<int64_t>{0, 0, 0, 0}
                                                   : std::vector<int64_t>{0, 1, 2, 3}))
                        .chunks(4));
  LossFn loss = [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::cross_entropy(outputs.at(0).flatten(0, 1), targets.at(0).flatten());
  };
  if (head_in_loss) loss = models::HeadLoss(model->ptr(model->size() - 1));
  torch::optim::AdamW optimizer(pipe->parameters(), 0.01);
  std::vector<Tensor> trace;
  for (int64_t k = 0; k < 3; ++k) {
    const Tensor ids = torch::randint(24, {8, 8}, at::kLong);
    const Tensor x = testing::copy_on(pipe->devices().front(), ids);
    const Tensor y = testing::copy_on(pipe->devices().back(), ids.roll(1, 1));
    optimizer.zero_grad();
    trace.push_back(torch::tensor(pipe->step({x}, {y}, loss).loss, at::kDouble));
    for (const Tensor& parameter : pipe->parameters()) trace.push_back(on_host(parameter.grad()));
    optimizer.step();
  }
  return trace;
}

TEST_F(TiedDevices, Gpt2TrainsToTheBitsOfOneDevice) {
  for (const bool head_in_loss : {false, true}) {
    SCOPED_TRACE(head_in_loss);
    EXPECT_THAT(train_gpt2(false, head_in_loss), EqualsBitwise(train_gpt2(true, head_in_loss)));
  }
}

// Runs two pipelines over one model in two threads. Their results must be those without threads,
// because during a run a layer uses the copies of that run's pipeline.
void run_in_two_threads(const Model& model, const nn::Sequential& layers,
                        const std::vector<int64_t>& devices) {
  const std::vector<GPipe> pipes = {GPipe(layers, options_on(devices)),
                                    GPipe(layers, options_on(devices).chunks(2))};
  const Tensor x = rows(pipes[0]);
  std::vector<std::string> said(pipes.size());
  std::vector<std::thread> threads;
  std::vector<Tensor> want, got(pipes.size());
  for (size_t k = 0; k < pipes.size(); ++k) {
    GPipe pipe = pipes[k];
    {
      const c10::NoGradGuard no_grad;
      want.push_back(on_host(pipe->forward(x)));
    }
  }
  for (size_t k = 0; k < pipes.size(); ++k) {
    threads.emplace_back([&, pipe = pipes[k], k]() mutable {
      said[k] = refusal([&] {
        const c10::NoGradGuard no_grad;
        for (int call = 0; call < 40; ++call) got[k] = on_host(pipe->forward(x));
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(said, ::testing::Each("nothing was thrown"));
  EXPECT_THAT(got, EqualsBitwise(want));
  for (const Later& later : model.later) EXPECT_TRUE(later->weight.is_same(model.first->weight));
}

TEST_F(TiedDevices, PipelinesOverOneModelMayRunInSeveralThreads) {
  const testing::HostWaitsAllowed waits;
  const Model model = make_model();
  run_in_two_threads(model, model.layers, kSpread[0]);
  // Here the stage that owns the weight is on device 1, so device 0, where the pipeline begins, has
  // the copy.
  const Model behind = make_model();
  run_in_two_threads(behind,
                     nn::Sequential(nn::Linear(kWidth, kWidth), behind.first, behind.later[0],
                                    behind.later[1], behind.later[2], nn::Linear(kWidth, kWidth)),
                     {0, 1, 0, 0, 0, 1});
}

// A layer that fails once. During a run, tied layers on other devices have copies of the parameter.
// After the failure each layer must have its own parameters again.
struct ThrowsOnceImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    TORCH_CHECK(++calls != 3, "the third call");
    return x * 1;
  }
  int64_t calls = 0;
};
TORCH_MODULE(ThrowsOnce);

TEST_F(TiedDevices, AFailedStepLeavesNothing) {
  const First first;
  const Later later(first->weight, 2);
  const nn::Sequential model(first, ThrowsOnce(), later);
  GPipe pipe(model, GPipeOptions({1, 1, 1}).devices(devices_of({0, 1, 2})).chunks(4));
  const Tensor x = rows(pipe);
  EXPECT_THAT(refusal([&] { pipe->step({x}, {}, square); }), HasSubstr("the third call"));
  EXPECT_TRUE(later->weight.is_same(first->weight));
  EXPECT_FALSE(first->weight.grad().defined());
  pipe->step({x}, {}, square);
  EXPECT_TRUE(first->weight.grad().defined());
}

}  // namespace
}  // namespace gpipe
