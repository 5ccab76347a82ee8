// Tests GPipe::forward: kinds of inputs and outputs, batches of every size, grad and training
// modes, and what layers see of checkpoints. transparency_test shows that the numbers are right.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::cpus;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::layer;
using ::testing::Pair;
using testing::PlainModel;
using ::testing::ThrowsMessage;

GPipeOptions options(std::vector<int64_t> balance) {
  const size_t partitions = balance.size();
  return GPipeOptions(std::move(balance)).devices(cpus(partitions));
}

struct Seen {
  int64_t rows;
  bool has_history;
  bool training;
};

// A linear layer that logs how it was called.
struct WitnessImpl : nn::Module {
  WitnessImpl() { linear = register_module("linear", nn::Linear(4, 4)); }
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = linear(x);
    std::lock_guard<std::mutex> lock(mutex);
    flags.emplace_back(is_checkpointing(), is_recomputing());
    calls.push_back({x.size(0), y.requires_grad(), is_training()});
    return y;
  }
  nn::Linear linear{nullptr};
  std::mutex mutex;
  std::vector<std::pair<bool, bool>> flags;
  std::vector<Seen> calls;
};
TORCH_MODULE(Witness);

using Tensor = torch::Tensor;
using PairOf = std::tuple<Tensor, Tensor>;

std::vector<int64_t> rows_of(const Witness& witness) {
  std::vector<int64_t> rows;
  for (const Seen& call : witness->calls) rows.push_back(call.rows);
  return rows;
}

TEST(GPipeForward, CutsBatchesOfEverySizeWithoutAWarning) {
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> cases = {
      {7, {2, 2, 2, 1}}, {5, {2, 2, 1}}, {2, {1, 1}}, {9, {3, 3, 3}}, {8, {2, 2, 2, 2}}, {1, {1}}};
  for (const auto& [rows, expected] : cases) {
    Witness first, last;
    GPipe pipe(nn::Sequential(first, last),
               options({1, 1}).chunks(4).checkpoint(Checkpoint::kNever));
    ::testing::internal::CaptureStderr();
    const Tensor output = pipe->forward(torch::rand({rows, 4}));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(output.sizes(), at::IntArrayRef({rows, 4}));
    EXPECT_EQ(rows_of(first), expected);
    EXPECT_EQ(rows_of(last), expected);
  }
}

TEST(GPipeForward, AcceptsABatchOfNoRows) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 3)),
             options({1, 2}).chunks(4));
  const Tensor output = pipe->forward(torch::rand({0, 4}));
  EXPECT_EQ(output.sizes(), at::IntArrayRef({0, 3}));
  output.sum().backward();
  for (const auto& parameter : pipe->parameters()) {
    EXPECT_THAT(parameter.grad(), EqualsBitwise(torch::zeros_like(parameter)));
  }
}

TEST(GPipeForward, RefusesInputsOfDifferentBatchSizes) {
  auto add = layer<Tensors, Tensor>([](Tensors x) { return x[0] + x[1].sum(); });
  GPipe pipe(nn::Sequential(add), options({1}).chunks(4));
  EXPECT_THAT(([&] {
                pipe->forward(Tensors{torch::rand({4, 1}), torch::rand({2, 1})});
              }),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("input 1 has 2 rows"), HasSubstr("input 0 has 4"))));
}

TEST(GPipeForward, RefusesANumberOfInputsThatTheFirstLayerDoesNotTake) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4)), options({1}));
  EXPECT_THAT(([&] {
                pipe->forward(Tensors{torch::rand({2, 4}), torch::rand({2, 4})});
              }),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("takes a Tensor"), HasSubstr("2 tensors were given"))));
}

TEST(GPipeForward, RefusesAnInputOnAnotherDevice) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4)), options({1}));
  EXPECT_THAT(([&] {
                pipe->forward(torch::rand({2, 4}, torch::kMeta));
              }),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("meta"), HasSubstr("cpu"), HasSubstr(".to()"))));
}

TEST(GPipeForward, ScalarOutputsCannotBeJoined) {
  auto sum = layer<Tensor, Tensor>([](Tensor x) { return x.sum(); });
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), sum), options({1, 1}).chunks(2));
  EXPECT_THAT(
      [&] {
        pipe->forward(torch::rand({4, 4}));
      },
      ThrowsMessage<c10::ValueError>(
          AllOf(HasSubstr("scalar"), HasSubstr("one value for each row"), HasSubstr("step()"))));
  EXPECT_EQ(pipe->forward(torch::rand({1, 4})).dim(), 0);  // a single micro-batch is not joined
}

TEST(GPipeForward, AValueOfAnotherTypeAtABorderIsATypeError) {
  auto count = layer<Tensor, int64_t>([](Tensor x) { return x.size(0); });
  auto fill = layer<int64_t, Tensor>([](int64_t rows) { return torch::ones({rows, 1}); });
  EXPECT_THAT(([&] {
                GPipe(nn::Sequential(count, fill), options({1, 1}))->forward(torch::rand({4, 4}));
              }),
              ThrowsMessage<c10::TypeError>(AllOf(HasSubstr("long"), HasSubstr("layer 1 ('1')"))));
  // Within a partition, layers may pass each other values of any type, so this is no error.
  GPipe inside(nn::Sequential(count, fill), options({2}).chunks(2));
  EXPECT_THAT(inside->forward(torch::rand({4, 4})), EqualsBitwise(torch::ones({4, 1})));
}

TEST(GPipeForward, APairGoesInAndOut) {
  nn::Linear a(4, 4), b(4, 4);
  auto both = layer<PairOf, PairOf>(
      [=](PairOf x) mutable { return PairOf(a(std::get<0>(x)), b(std::get<1>(x))); });
  auto swap =
      layer<PairOf, PairOf>([](PairOf x) { return PairOf(std::get<1>(x), std::get<0>(x)); });
  nn::Sequential model(both, swap);
  GPipe pipe(model, options({1, 1}).chunks(2));
  const Tensors inputs = {torch::rand({4, 4}).requires_grad_(),
                          torch::rand({4, 4}).requires_grad_()};
  auto loss = [](const Tensors& outputs) { return outputs[0].sum() + 2 * outputs[1].sum(); };
  const Tensors want = PlainModel(model, 2).forward(inputs);
  const Tensors want_gradients = torch::autograd::grad({loss(want)}, inputs);
  const Tensors outputs = pipe->forward(inputs);
  EXPECT_THAT(outputs, EqualsBitwise(want));
  EXPECT_THAT(outputs[0].slice(0, 0, 2), EqualsBitwise(b(inputs[1].slice(0, 0, 2))));
  loss(outputs).backward();
  for (size_t k = 0; k < 2; ++k) EXPECT_THAT(inputs[k].grad(), EqualsBitwise(want_gradients[k]));
}

TEST(GPipeForward, TheSameInputTwiceStaysOneTensor) {
  int64_t calls = 0;
  auto check = layer<Tensors, torch::Tensor>([&](Tensors values) {
    ++calls;
    EXPECT_TRUE(values.at(0).is_same(values.at(2)));
    EXPECT_FALSE(values.at(0).is_same(values.at(1)));
    EXPECT_FALSE(values.at(3).defined());
    EXPECT_FALSE(values.at(4).defined());
    return values[0] + values[1];
  });
  GPipe pipe(nn::Sequential(check), options({1}).chunks(2));
  const torch::Tensor a = torch::ones({4, 2});
  const torch::Tensor b = torch::ones({4, 2}) * 2;
  const Tensors outputs = pipe->forward(Tensors{a, b, a, torch::Tensor(), torch::Tensor()});
  EXPECT_THAT(outputs.at(0), EqualsBitwise(torch::full({4, 2}, 3.0)));
  EXPECT_EQ(calls, 2);
}

TEST(GPipeForward, StagesHaveTheirNumberOfIntraOpThreadsAndOthersKeepTheirs) {
  const int usual = at::get_num_threads();
  for (const int64_t wanted : {1, 3}) {
    std::mutex mutex;
    std::vector<int> seen;
    auto look = [&] {
      return layer<torch::Tensor, torch::Tensor>([&](torch::Tensor x) {
        std::lock_guard<std::mutex> lock(mutex);
        seen.push_back(at::get_num_threads());
        return x;
      });
    };
    GPipe pipe(nn::Sequential(look(), look()),
               options({1, 1}).chunks(1).cpu_threads_per_stage(wanted));
    EXPECT_EQ(at::get_num_threads(), usual);
    int of_new_thread = 0;
    std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
    EXPECT_EQ(of_new_thread, usual) << "the default was left changed";
    pipe->forward(torch::ones({2, 2}));
    EXPECT_THAT(seen, ElementsAre(wanted, wanted));

    seen.clear();
    GPipe single(nn::Sequential(look(), look()),
                 options({2}).chunks(1).cpu_threads_per_stage(wanted));
    single->forward(torch::ones({2, 2}));
    EXPECT_THAT(seen, ElementsAre(wanted, wanted));
    EXPECT_EQ(at::get_num_threads(), usual) << "nor is the caller's number changed";
  }
}

int64_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// If all OpenMP teams together had more threads than there are cores, libgomp would let none of
// them spin (gpipe/internal/threads/openmp_team.h). So idle teams must end.
TEST(GPipeForward, OpenMpThreadsOfTheCallerEndBeforeALongRunAndThoseOfWorkersAfterIt) {
  std::mutex mutex;
  std::vector<int64_t> seen;
  auto slow = layer<Tensor, Tensor>([&](Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::lock_guard<std::mutex> lock(mutex);
    seen.push_back(threads_of_process());
    return x + torch::ones({1 << 20}).exp().mean();
  });
  const int usual = at::get_num_threads();
  std::thread([&] {
    (void)at::get_num_threads();  // the first call sets the default number
    at::set_num_threads(4);
    // There is a single micro-batch, so the stages run one after the other.
    GPipe pipe(nn::Sequential(slow, nn::Identity()), options({1, 1}).chunks(1));
    const int64_t without_teams = threads_of_process();
    // The pipeline does not know yet that the first run is long. So the teams end only in the
    // second run.
    for (const int run : {1, 2, 3}) {
      (void)torch::ones({1 << 20}).exp();
      seen.clear();
      pipe->forward(torch::ones({2, 2}));
      // An ended thread is listed for a moment longer, so this waits.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const int64_t after = threads_of_process();
      if (run == 1) {
        EXPECT_THAT(seen, ElementsAre(without_teams + 3));
        EXPECT_EQ(after, without_teams + 3 + 1);
      } else {
        EXPECT_THAT(seen, ElementsAre(without_teams + (run == 2 ? 1 : 0)));
        EXPECT_EQ(after, without_teams);
      }
    }
  }).join();
  at::set_num_threads(usual);
}

TEST(GPipeForward, AnOutputWithOtherRowsThanTheMicroBatchIsRefused) {
  auto grow = layer<Tensor, Tensors>([](Tensor x) {
    return Tensors{x * 3, torch::cat({x, 2 * x})};
  });
  auto drop = layer<Tensor, Tensor>([](Tensor x) { return x.slice(0, 0, x.size(0) - 1); });
  auto time_first = layer<Tensor, Tensor>([](Tensor x) { return x.t() * 2; });
  auto refused = [](const char* shape, const char* rows) {
    return ThrowsMessage<c10::ValueError>(
        AllOf(HasSubstr(shape), HasSubstr(rows), HasSubstr("dimension 0"), HasSubstr("chunks(1)")));
  };
  const Tensor x = torch::rand({4, 3}).requires_grad_();
  auto loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).sum(); };
  const std::vector<std::tuple<nn::Sequential, const char*, const char*>> cases = {
      {nn::Sequential(nn::Identity(), grow), "[4, 3]", "has 2 rows"},
      {nn::Sequential(nn::Identity(), drop), "[1, 3]", "has 2 rows"},
      {nn::Sequential(nn::Identity(), time_first), "[3, 2]", "has 2 rows"}};
  for (const auto& [model, shape, rows] : cases) {
    GPipe pipe(model, options({1, 1}).chunks(2));
    EXPECT_THAT([&] { pipe->forward(Tensors{x}); }, refused(shape, rows));
    EXPECT_THAT([&] { pipe->step({x}, {}, loss); }, refused(shape, rows));
  }
  // A single micro-batch is not joined, so its output may have any rows.
  GPipe whole(nn::Sequential(nn::Identity(), time_first), options({1, 1}));
  EXPECT_THAT(whole->forward(x), EqualsBitwise(x.t() * 2));
}

TEST(GPipeForward, SeveralOutputsNeedTheListForm) {
  auto twice = layer<Tensor, Tensors>([](Tensor x) { return Tensors{x, 2 * x}; });
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), twice), options({1, 1}).chunks(2));
  const Tensor x = torch::rand({4, 4});
  EXPECT_THAT([&] { pipe->forward(x); },
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("2 values"), HasSubstr("vector"))));
  const Tensors outputs = pipe->forward(Tensors{x});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_THAT(outputs[1], EqualsBitwise(2 * outputs[0]));
}

TEST(GPipeForward, AListOfOneStaysAListOfOne) {
  nn::Linear linear(4, 4);
  std::vector<size_t> sizes;
  auto first = layer<Tensors, Tensors>([=](Tensors x) mutable { return Tensors{linear(x.at(0))}; });
  auto second = layer<Tensors, Tensors>([&](Tensors x) {
    sizes.push_back(x.size());
    return x;
  });
  GPipe pipe(nn::Sequential(first, second),
             options({1, 1}).chunks(2).checkpoint(Checkpoint::kNever));
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  const Tensors outputs = pipe->forward(Tensors{x});
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_THAT(sizes, ElementsAre(1, 1));
  outputs[0].mean().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST(GPipeForward, OutputsWithoutGradientsStayWithoutThem) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    auto mixed = layer<Tensor, Tensors>([](Tensor x) { return Tensors{x.argmax(1), x}; });
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), mixed), options({1, 1}).chunks(2).checkpoint(mode));
    const Tensors outputs = pipe->forward(Tensors{torch::rand({4, 4})});
    EXPECT_FALSE(outputs[0].requires_grad());
    EXPECT_TRUE(outputs[1].requires_grad());
    outputs[1].sum().backward();
    for (const auto& parameter : pipe->parameters()) EXPECT_TRUE(parameter.grad().defined());
  }
}

TEST(GPipeForward, RecomputesAsOftenAsTheModeSays) {
  const std::vector<std::pair<Checkpoint, size_t>> cases = {
      {Checkpoint::kAlways, 2}, {Checkpoint::kExceptLast, 1}, {Checkpoint::kNever, 0}};
  for (const auto& [mode, recomputes] : cases) {
    Witness first, last;
    GPipe pipe(nn::Sequential(first, last), options({1, 1}).chunks(2).checkpoint(mode));
    pipe->forward(torch::rand({2, 4})).sum().backward();
    EXPECT_EQ(first->calls.size(), 2 + recomputes) << to_text(mode);
    EXPECT_EQ(last->calls.size(), 2 + recomputes) << to_text(mode);
  }
}

TEST(GPipeForward, EveryPartitionRecomputesAsItsOwnModeSays) {
  Witness always, except_last, never;
  GPipe pipe(nn::Sequential(always, except_last, never),
             options({1, 1, 1}).chunks(3).partition_checkpoints(
                 {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}));
  pipe->forward(torch::rand({3, 4})).sum().backward();
  EXPECT_EQ(always->calls.size(), 6u);
  EXPECT_EQ(except_last->calls.size(), 5u);
  EXPECT_EQ(never->calls.size(), 3u);
}

// A checkpointed stage drops the graph of its forward. But its output must require a gradient if
// the output of the plain model does.
TEST(GPipeForward, ACheckpointedOutputWantsAGradientWhereAParameterOrAnInputDoes) {
  for (const bool parameter : {false, true}) {
    for (const bool input : {false, true}) {
      nn::Linear linear(4, 4);
      for (auto& p : linear->parameters()) p.requires_grad_(parameter);
      GPipe pipe(nn::Sequential(linear, nn::ReLU()),
                 options({1, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
      const Tensor x = torch::rand({4, 4}).requires_grad_(input);
      const Tensor y = pipe->forward(x);
      EXPECT_EQ(y.requires_grad(), parameter || input);
      if (!y.requires_grad()) continue;
      y.sum().backward();
      EXPECT_EQ(linear->weight.grad().defined(), parameter);
      EXPECT_EQ(x.grad().defined(), input);
    }
  }
}

TEST(GPipeForward, ExceptLastKnowsTheLastMicroBatchOfAShortMiniBatch) {
  Witness witness;
  GPipe pipe(nn::Sequential(witness), options({1}).chunks(4));  // the mode is kExceptLast
  pipe->forward(torch::rand({2, 4})).sum().backward();          // two micro-batches
  EXPECT_THAT(witness->flags,
              ElementsAre(Pair(true, false), Pair(false, false), Pair(false, true)));
}

TEST(GPipeForward, LayersSeeWhetherTheyAreCheckpointedOrRecomputed) {
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
  for (const bool step : {false, true}) {
    Witness first, last;
    GPipe pipe(nn::Sequential(first, last), options({1, 1}).checkpoint(Checkpoint::kAlways));
    if (step) {
      pipe->step({torch::rand({2, 4})}, {}, [](const Tensors& o, const Tensors&) {
        EXPECT_FALSE(is_recomputing());
        return o[0].mean();
      });
    } else {
      pipe->forward(torch::rand({2, 4})).sum().backward();
    }
    for (const Witness& witness : {first, last}) {
      EXPECT_THAT(witness->flags, ElementsAre(Pair(true, false), Pair(false, true)));
      // Both passes must look to a layer like the plain model's pass, although the graph of the
      // first pass is dropped.
      EXPECT_TRUE(witness->calls[0].has_history);
      EXPECT_TRUE(witness->calls[1].has_history);
    }
  }
  Witness never;
  GPipe pipe(nn::Sequential(never), options({1}).checkpoint(Checkpoint::kNever));
  pipe->forward(torch::rand({2, 4})).sum().backward();
  EXPECT_THAT(never->flags, ElementsAre(Pair(false, false)));
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
}

TEST(GPipeForward, TheWrappersTrainingFlagRulesCheckpointing) {
  Witness first, last;
  GPipe pipe(nn::Sequential(first, last), options({1, 1}).checkpoint(Checkpoint::kAlways));
  pipe->eval();
  const Tensor output = pipe->forward(torch::rand({2, 4}));
  EXPECT_TRUE(output.requires_grad());  // eval() does not switch gradients off
  output.sum().backward();
  EXPECT_THAT(first->flags, ElementsAre(Pair(false, false)));
  EXPECT_FALSE(first->calls[0].training);
  EXPECT_TRUE(first->linear->weight.grad().defined());

  pipe->train();
  first->eval();  // eval() of a layer affects only that layer
  first->flags.clear();
  last->flags.clear();
  pipe->forward(torch::rand({2, 4})).sum().backward();
  EXPECT_THAT(first->flags, ElementsAre(Pair(true, false), Pair(false, true)));
  EXPECT_THAT(last->flags, ElementsAre(Pair(true, false), Pair(false, true)));
  EXPECT_FALSE(first->calls.back().training);
  EXPECT_TRUE(last->calls.back().training);
}

TEST(GPipeForward, WithoutGradModeNothingIsRecordedOrCheckpointed) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    Witness first, last;
    GPipe pipe(nn::Sequential(first, last), options({1, 1}).chunks(2).checkpoint(mode));
    torch::NoGradGuard no_grad;
    const Tensor output = pipe->forward(torch::rand({4, 4}));
    EXPECT_FALSE(output.requires_grad());
    EXPECT_EQ(output.grad_fn(), nullptr);
    for (const Witness& witness : {first, last}) {
      EXPECT_THAT(witness->flags, ElementsAre(Pair(false, false), Pair(false, false)));
      for (const Seen& call : witness->calls) EXPECT_FALSE(call.has_history);
    }
  }
}

TEST(GPipeForward, InferenceModeReachesTheLayers) {
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)), options({1, 1}).chunks(2));
  c10::InferenceMode guard;
  EXPECT_TRUE(pipe->forward(torch::rand({4, 4})).is_inference());
}

TEST(GPipeForward, FrozenStagesAreNotRecomputed) {
  Witness frozen, trained;
  for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  GPipe pipe(nn::Sequential(frozen, trained),
             options({1, 1}).chunks(2).checkpoint(Checkpoint::kAlways));
  pipe->forward(torch::rand({4, 4})).sum().backward();
  EXPECT_EQ(frozen->calls.size(), 2u);
  EXPECT_EQ(trained->calls.size(), 4u);
  EXPECT_FALSE(frozen->linear->weight.grad().defined());
  EXPECT_TRUE(trained->linear->weight.grad().defined());
}

TEST(GPipeForward, ParametersWithoutARegistrationGetTheirGradients) {
  const Tensor hidden = torch::ones({4}).requires_grad_();
  auto scale = layer<Tensor, Tensor>([=](Tensor x) { return x * hidden; });
  GPipe pipe(nn::Sequential(scale), options({1}).chunks(2).checkpoint(Checkpoint::kAlways));
  pipe->forward(torch::ones({4, 4})).sum().backward();
  EXPECT_THAT(hidden.grad(), EqualsBitwise(torch::full({4}, 4.0)));
}

struct TiedImpl : nn::Module {
  explicit TiedImpl(const Tensor& shared) : scale(register_parameter("scale", shared)) {}
  Tensor forward(Tensor x) { return (x * scale).tanh(); }
  Tensor scale;
};
TORCH_MODULE(Tied);

TEST(GPipeForward, LayersMayShareAParameterOnOneDevice) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{3}, {2, 1}, {1, 1, 1}}) {
    for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      auto build = [](const Tensor& shared) {
        testing::manual_seed(1);
        return nn::Sequential(Tied(shared), nn::Linear(4, 4), Tied(shared));
      };
      testing::manual_seed(2);
      const Tensor plain_shared = torch::rand({4});
      const Tensor pipe_shared = plain_shared.clone();
      auto plain = build(plain_shared);
      GPipe pipe(build(pipe_shared), options(balance).chunks(3).checkpoint(mode));
      const Tensor x = torch::rand({6, 4});
      PlainModel(plain, 3).forward({x})[0].pow(2).sum().backward();
      pipe->forward(x).pow(2).sum().backward();
      const auto scales = pipe->named_parameters();
      EXPECT_TRUE(scales["0.scale"].is_same(scales["2.scale"]));
      EXPECT_THAT(scales["0.scale"].grad(),
                  EqualsBitwise(plain->named_parameters()["0.scale"].grad()));
    }
  }
}

TEST(GPipeForward, DeferredBatchNormCountsTheMiniBatchOnce) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    nn::BatchNorm1d plain(4), norm(4);
    GPipe pipe(nn::Sequential(nn::Identity(), norm),
               options({1, 1}).chunks(2).checkpoint(mode).deferred_batch_norm(true));
    const Tensor x = torch::randn({7, 4}) * 3 + 1;
    plain(x);
    pipe->forward(x.clone()).sum().backward();
    // Sums over micro-batches are rounded differently from a sum over the batch.
    EXPECT_TRUE(torch::allclose(norm->running_mean, plain->running_mean, /*rtol=*/1e-5,
                                /*atol=*/1e-6));
    EXPECT_TRUE(torch::allclose(norm->running_var, plain->running_var, /*rtol=*/1e-5,
                                /*atol=*/1e-6));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
    pipe->eval();
    plain->eval();
    EXPECT_TRUE(torch::allclose(pipe->forward(x), plain(x), /*rtol=*/1e-5, /*atol=*/1e-5));
  }
}

TEST(GPipeForward, DeferredBatchNormWithOneChunkHasTheGradientsOfThePlainOne) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    nn::BatchNorm1d plain(4), norm(4);
    GPipe pipe(nn::Sequential(norm), options({1}).checkpoint(mode).deferred_batch_norm(true));
    const Tensor x = torch::randn({6, 4});
    const Tensor weights = torch::randn({6, 4});
    (plain(x) * weights).sum().backward();
    (pipe->forward(x) * weights).sum().backward();
    EXPECT_THAT(norm->weight.grad(), EqualsBitwise(plain->weight.grad()));
    EXPECT_THAT(norm->bias.grad(), EqualsBitwise(plain->bias.grad()));
  }
}

}  // namespace
}  // namespace gpipe
