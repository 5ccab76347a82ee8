// Gives every public function of the package wrong input. The function must throw as its header
// says, the message must say what was given and what to do, and the pipeline must remain usable
// with nothing lost.
#include "tools/testing/wrong_input.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/ordered_dict.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/options.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "skip/skippable.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using skip::testing::pop_layer;
using skip::testing::stash_layer;
using testing::cpus;
using testing::EqualsBitwise;
using testing::layer;
using testing::PlainModel;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

at::Tensor mse(const Tensors& outputs, const Tensors& targets) {
  return nn::functional::mse_loss(outputs[0], targets[0]);
}

// --- Construction

nn::Sequential two_layers() { return nn::Sequential(nn::Linear(4, 4), nn::Tanh()); }

using Building = testing::WrongInput<nn::Sequential>;

class WrongConstruction : public ::testing::TestWithParam<Building> {};

TEST_P(WrongConstruction, IsRefusedAndTheModelIsAsItWas) {
  auto model = two_layers();
  const at::Tensor input = torch::rand({4, 4});
  const at::Tensor expected = model->forward(input);
  testing::expect_refused<nn::Sequential>(GetParam(), model);
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.is_cpu());
  EXPECT_THAT(model->forward(input), EqualsBitwise(expected));
  GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).chunks(2));
  // The expected value is not the whole batch's output, because a product of two rows may be
  // rounded differently from a product of four.
  EXPECT_THAT(pipe->forward(input), EqualsBitwise(PlainModel(model, 2).forward({input})[0]));
}

Building building(std::string name, std::function<void(nn::Sequential)> call,
                  std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(c10::ValueError), std::move(parts)};
}

Building balance(std::string name, std::vector<int64_t> given, std::vector<std::string> parts) {
  parts.push_back("gpipe::balance::balance_by_time");
  parts.push_back("balance/balance.h");
  return building(
      std::move(name), [=](nn::Sequential model) { GPipe pipe(model, GPipeOptions(given)); },
      std::move(parts));
}

Building options(std::string name, GPipeOptions given, std::vector<std::string> parts) {
  return building(
      std::move(name), [=](nn::Sequential model) { GPipe pipe(model, given); }, std::move(parts));
}

// A Building of the model `model` in partitions of one layer each.
Building own_model(std::string name, std::function<nn::Sequential()> model,
                   std::vector<std::string> parts) {
  return building(
      std::move(name),
      [=](nn::Sequential) {
        auto network = model();
        const std::vector<int64_t> each(network->size(), 1);
        GPipe pipe(network, GPipeOptions(each).devices(cpus(each.size())));
      },
      std::move(parts));
}

Building of_type(std::type_index type, Building row) {
  row.type = type;
  return row;
}

struct NullWithinImpl : nn::Module {
  NullWithinImpl() { register_module("hole", std::shared_ptr<nn::LinearImpl>()); }
  at::Tensor forward(at::Tensor x) { return x; }
};
TORCH_MODULE(NullWithin);

// A module that holds a whole pipeline.
struct InnerImpl : nn::Module {
  InnerImpl() {
    pipe = register_module("pipe", GPipe(two_layers(), GPipeOptions({2}).devices(cpus(1))));
  }
  at::Tensor forward(at::Tensor x) { return pipe->forward(x); }
  GPipe pipe{nullptr};
};
TORCH_MODULE(Inner);

struct ScaleImpl : nn::Module {
  explicit ScaleImpl(const at::Tensor& shared) : scale(register_parameter("scale", shared)) {}
  at::Tensor forward(at::Tensor x) { return x * scale; }
  at::Tensor scale;
};
TORCH_MODULE(Scale);

std::vector<Building> constructions() {
  const GPipeOptions good = GPipeOptions({1, 1}).devices(cpus(2));
  const auto with = [&](auto change) {
    GPipeOptions changed = good;
    change(changed);
    return changed;
  };
  const auto on = [](std::vector<c10::Device> devices) {
    return GPipeOptions({1, 1}).devices(std::move(devices));
  };
  const auto type_error = std::type_index(typeid(c10::TypeError));
  const auto index_error = std::type_index(typeid(c10::IndexError));
  std::vector<Building> rows = {
      balance("BalanceEmpty", {}, {"the balance is empty", "2 layers"}),
      balance("BalanceTooSmall", {1}, {"{1} sums up to 1", "2 layers"}),
      balance("BalanceTooLarge", {1, 2}, {"{1, 2} sums up to 3", "2 layers"}),
      balance("BalanceOfTooMany", {1, 1, 1}, {"{1, 1, 1} sums up to 3", "2 layers"}),
      balance("BalanceZero", {0}, {"at least one layer", "{0}"}),
      balance("BalanceZeroFirst", {0, 2}, {"at least one layer", "{0, 2}"}),
      balance("BalanceZeroLast", {2, 0}, {"at least one layer", "{2, 0}"}),
      balance("BalanceNegative", {-1, 3}, {"at least one layer", "{-1, 3}"}),
      balance("BalanceLeast", {kMin}, {"at least one layer", "{-9223372036854775808}"}),
      balance("BalanceMost", {kMax}, {"sums up to 9223372036854775807", "2 layers"}),
      balance("BalanceOverflows", {kMax, 1}, {"more than 2^63 - 1", "2 layers"}),
      balance("BalanceOverflowsToTheRightSum", {kMax, kMax, 4}, {"more than 2^63 - 1", "2 layers"}),
      balance("BalanceUnderflowsToTheRightSum", {kMin, kMin, 2}, {"at least one layer"}),
      options("ChunksZero", with([](auto& o) { o.chunks(0); }), {"chunks", "at least 1", "got 0"}),
      options("ChunksNegative", with([](auto& o) { o.chunks(-1); }), {"at least 1", "got -1"}),
      options("ChunksLeast", with([](auto& o) { o.chunks(kMin); }),
              {"at least 1", "got -9223372036854775808"}),
      options("CheckpointUnknown", with([](auto& o) { o.checkpoint(static_cast<Checkpoint>(7)); }),
              {"kAlways, kExceptLast and kNever", "the number 7"}),
      options("CheckpointMost", with([](auto& o) { o.checkpoint(static_cast<Checkpoint>(255)); }),
              {"kAlways, kExceptLast and kNever", "the number 255"}),
      of_type(index_error, options("DevicesTooFew", on(cpus(1)),
                                   {"2 partitions", "only 1 device", "fewer partitions"})),
      options("DeviceThatDoesNotExist", on({torch::kCPU, torch::Device("cuda:100")}),
              {"device 1 is cuda:100", "devices of type cuda", "give devices that exist"}),
      // All devices are checked before any layer is moved. So the first layer must not have gone to
      // meta when the second device is refused.
      options("DeviceThatDoesNotExistBehindOneThatDoes",
              on({torch::kMeta, torch::Device("cuda:100")}),
              {"device 1 is cuda:100", "give devices that exist"}),
      options("DeviceOfAnUnknownBackend", on({torch::Device("fpga:0"), torch::kCPU}),
              {"device 0 is fpga:0", "there are 0 devices of type fpga"}),
      options("DeviceOfAnUnknownBackendWithoutIndex", on({torch::kCPU, torch::Device("vulkan")}),
              {"device 1 is vulkan", "there are 0 devices of type vulkan"}),
      building("EmptyHolder",
               [](nn::Sequential) { GPipe pipe(nn::Sequential(nullptr), GPipeOptions({1})); },
               {"empty module holder", "give a Sequential"}),
      building("BalanceForAModelWithoutLayers",
               [](nn::Sequential) { GPipe pipe(nn::Sequential(), GPipeOptions({1})); },
               {"{1} sums up to 1", "0 layers"}),
      own_model("NullLayer",
                [] {
                  auto model = two_layers();
                  model->push_back("gone", std::shared_ptr<nn::LinearImpl>());
                  return model;
                },
                {"the layer 'gone' of the model is a null pointer", "leave it out"}),
      own_model("TwoNullLayers",
                [] {
                  nn::Sequential model;
                  for (int i = 0; i < 2; ++i) model->push_back(std::shared_ptr<nn::LinearImpl>());
                  return model;
                },
                {"the layer '0' of the model is a null pointer"}),
      own_model("NullWithinALayer", [] { return nn::Sequential(nn::Tanh(), NullWithin()); },
                {"the submodule '1.hole' is a null pointer"}),
      own_model("TheSameLayerTwice",
                [] {
                  nn::Linear twice(4, 4);
                  return nn::Sequential(twice, nn::Tanh(), twice);
                },
                {"'0' and '2'", "the same object", "only once"}),
      building(
          "TensorSharedByTwoDevices",
          [](nn::Sequential) {
            const at::Tensor shared = torch::ones({4});
            GPipe pipe(nn::Sequential(Scale{shared}, Scale{shared}),
                       GPipeOptions({1, 1}).devices({torch::kCPU, torch::kMeta}));
          },
          {"'0.scale' of partition 0 on cpu", "'1.scale' of partition 1 on meta", "same device"}),
      of_type(type_error,
              own_model("SkipThatNobodyPops", [] { return nn::Sequential(stash_layer({"a"})); },
                        {"child 0 stashes 'a', which no layer pops"})),
      of_type(type_error,
              own_model("SkipThatNobodyStashes", [] { return nn::Sequential(pop_layer({"a"})); },
                        {"child 0 pops 'a', which no layer stashes"})),
      of_type(type_error,
              own_model("SkipPoppedFirst",
                        [] { return nn::Sequential(pop_layer({"a"}), stash_layer({"a"})); },
                        {"child 0 pops 'a' before child 1 stashes it"})),
      of_type(type_error, own_model("SkipStashedTwice",
                                    [] {
                                      return nn::Sequential(stash_layer({"a"}), stash_layer({"a"}),
                                                            pop_layer({"a"}));
                                    },
                                    {"child 1 stashes 'a' again", "isolate()"})),
      of_type(type_error,
              own_model("LayerOfTwoArguments",
                        [] { return nn::Sequential(nn::Linear(4, 4), nn::Bilinear(4, 4, 4)); },
                        {"layer 1 ('1'), a torch::nn::BilinearImpl, takes 2 arguments",
                         "given exactly one", "std::tuple", "std::vector<Tensor>"})),
      of_type(type_error, own_model("FirstLayerOfTwoArguments",
                                    [] { return nn::Sequential(nn::Bilinear(4, 4, 4)); },
                                    {"layer 0 ('0'), a torch::nn::BilinearImpl, takes 2 arg"})),
      of_type(type_error,
              own_model("LayerOfThreeArgumentsAndDefaults",
                        [] { return nn::Sequential(nn::Tanh(), nn::MultiheadAttention(4, 2)); },
                        {"layer 1 ('1'), a torch::nn::MultiheadAttention, takes at least 3 arg"})),
      of_type(
          type_error,
          own_model("ADictIntoTheModel",
                    [] {
                      return nn::Sequential(layer<std::map<std::string, at::Tensor>, at::Tensor>(
                          [](auto x) { return x.begin()->second; }));
                    },
                    {"layer 0 ('0')", "takes a value of type std::map<std::string, Tensor>, but",
                     "first layer of partition 0", "let it take one of these"})),
      of_type(
          type_error,
          own_model("ANumberBetweenPartitions",
                    [] {
                      return nn::Sequential(
                          layer<at::Tensor, int64_t>([](at::Tensor x) { return x.size(0); }),
                          layer<int64_t, at::Tensor>([](int64_t n) { return torch::ones({n}); }));
                    },
                    {"layer 1 ('1')", "takes a value of type long", "first layer of partition 1",
                     "move the cut"})),
  };
  const std::vector<std::pair<std::string, int64_t>> threads = {{"MinusOne", -1},
                                                                {"Least", kMin},
                                                                {"OneTooMany", 1025},
                                                                {"Over32Bits", int64_t{1} << 32},
                                                                {"Most", kMax}};
  for (const auto& [name, count] : threads) {
    rows.push_back(options("Threads" + name,
                           with([count = count](auto& o) { o.cpu_threads_per_stage(count); }),
                           {"cpu_threads_per_stage", "0 (an equal share) or from 1 to 1024",
                            "got " + std::to_string(count)}));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(All, WrongConstruction, ::testing::ValuesIn(constructions()),
                         testing::row_name);

TEST(WrongDevice, CudaWithoutAGpuIsRefused) {
  if (torch::cuda::is_available()) return;  // with CUDA it is not wrong input
  const testing::WrongInput<> row{
      "Cuda",
      [] {
        GPipe pipe(two_layers(), GPipeOptions({1, 1}).devices({torch::kCPU, torch::kCUDA}));
      },
      typeid(c10::ValueError),
      {"device 1 is cuda", "there are 0 devices of type cuda", "torch::kCPU"}};
  testing::expect_refused(row);
}

// Values within a partition may be of any type. Only values that go from one partition to the next
// must be tensors.
TEST(TypesWithinAPartition, MayBeAny) {
  nn::Sequential model(
      layer<at::Tensor, std::map<std::string, at::Tensor>>([](at::Tensor x) {
        return std::map<std::string, at::Tensor>{{"a", x}, {"b", x + 1}};
      }),
      layer<std::map<std::string, at::Tensor>, at::Tensor>(
          [](std::map<std::string, at::Tensor> x) { return x.at("a") * x.at("b"); }),
      nn::Tanh());
  GPipe pipe(model, GPipeOptions({2, 1}).devices(cpus(2)).chunks(2));
  const at::Tensor x = torch::rand({4, 2});
  EXPECT_TRUE(torch::allclose(pipe->forward(x), (x * (x + 1)).tanh()));
}

// --- Calls of a pipeline.

// The pipeline of these calls has three stages, and four micro-batches of two rows. It has made a
// step, so a wrong call could lose its gradients.
struct Subject {
  Subject()
      : pipe(nn::Sequential(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 5), nn::Linear(5, 3)),
             GPipeOptions({1, 2, 1}).devices(cpus(3)).chunks(4)) {
    loss = pipe->step(inputs, targets, mse).loss;
  }

  GPipe pipe;
  const Tensors inputs = {torch::rand({8, 4})};
  const Tensors targets = {torch::rand({8, 3})};
  double loss = 0;
};

struct State {
  explicit State(const GPipe& pipe) : parameters(pipe->parameters()) {
    for (const at::Tensor& parameter : parameters) {
      values.push_back(parameter.detach().clone());
      gradients.push_back(parameter.grad().clone());
    }
  }

  void expect_kept(const GPipe& pipe) const {
    const Tensors now = pipe->parameters();
    ASSERT_EQ(now.size(), parameters.size());
    for (size_t k = 0; k < now.size(); ++k) {
      EXPECT_TRUE(now[k].is_same(parameters[k])) << k;
      EXPECT_TRUE(now[k].requires_grad()) << k;
      EXPECT_THAT(now[k], EqualsBitwise(values[k])) << k;
      EXPECT_THAT(now[k].grad(), EqualsBitwise(gradients[k])) << k;
    }
  }

  Tensors parameters;
  Tensors values;
  Tensors gradients;
};

using Call = testing::WrongInput<Subject&>;

class WrongCall : public ::testing::TestWithParam<Call> {};

TEST_P(WrongCall, IsRefusedAndThePipelineWorksOn) {
  Subject subject;
  const at::Tensor output = subject.pipe->forward(subject.inputs[0]).detach();
  const State before(subject.pipe);
  testing::expect_refused<Subject&>(GetParam(), subject);

  before.expect_kept(subject.pipe);
  EXPECT_TRUE(subject.pipe->is_training());
  EXPECT_TRUE(torch::GradMode::is_enabled());
  EXPECT_THAT(subject.pipe->forward(subject.inputs[0]), EqualsBitwise(output));
  for (at::Tensor& parameter : subject.pipe->parameters()) parameter.mutable_grad().zero_();
  const StepResult result = subject.pipe->step(subject.inputs, subject.targets, mse);
  EXPECT_EQ(result.loss, subject.loss);
  const Tensors parameters = subject.pipe->parameters();
  for (size_t k = 0; k < parameters.size(); ++k) {
    EXPECT_THAT(parameters[k].grad(), EqualsBitwise(before.gradients[k])) << k;
  }
}

Call value_error(std::string name, std::function<void(Subject&)> call,
                 std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(c10::ValueError), std::move(parts)};
}

template <typename E>
Call thrown(std::string name, std::function<void(Subject&)> call, std::vector<std::string> parts) {
  return {std::move(name), std::move(call), typeid(E), std::move(parts)};
}

// A call of another pipeline, made of `model`, with `inputs`.
template <typename E>
Call own_pipe(std::string name, std::function<nn::Sequential()> model, Tensors inputs,
              std::vector<std::string> parts) {
  return thrown<E>(
      std::move(name),
      [=](Subject&) {
        auto network = model();
        const std::vector<int64_t> each(network->size(), 1);
        GPipe(network, GPipeOptions(each).devices(cpus(each.size())).chunks(2))->forward(inputs);
      },
      std::move(parts));
}

// A call of a pipeline whose last layer returns a T, which the message calls `type`.
template <typename T>
Call returned(std::string name, std::string type) {
  return own_pipe<c10::TypeError>(
      name + "AsOutput",
      [] { return nn::Sequential(layer<at::Tensor, T>([](at::Tensor) { return T(); })); },
      {torch::rand({4, 1})},
      {"returned a value of type " + type + "; only Tensor", "return its tensors as one of these",
       "stage 0", "layer 0 ('0')"});
}

std::vector<Call> forwards() {
  const auto forward = [](std::function<at::Tensor(Subject&)> input) {
    return [=](Subject& s) { s.pipe->forward(input(s)); };
  };
  const auto several = [](std::function<Tensors(Subject&)> inputs) {
    return [=](Subject& s) { s.pipe->forward(inputs(s)); };
  };
  const std::string place = "stage 0, micro-batch 0, layer 0 ('0')";
  const auto add = layer<Tensors, at::Tensor>([](Tensors x) { return x[0] + x[1]; });
  const auto split = layer<at::Tensor, Tensors>([](at::Tensor x) { return Tensors{x, x}; });
  return {
      value_error("Undefined", forward([](Subject&) { return at::Tensor(); }),
                  {"forward was given an undefined tensor"}),
      value_error("Scalar", forward([](Subject&) { return torch::rand({}); }),
                  {"input 0 has no dimension", "batch as its dimension 0"}),
      value_error("OnAnotherDevice", forward([](Subject&) {
                    return torch::rand({8, 4}, torch::kMeta);
                  }),
                  {"input 0 is on meta", "first partition is on cpu", ".to()"}),
      thrown<c10::Error>("OfIntegers", forward([](Subject&) {
                           return torch::ones({8, 4}, torch::kLong);
                         }),
                         {"same dtype", place}),
      thrown<c10::Error>("OfBooleans", forward([](Subject&) {
                           return torch::ones({8, 4}, torch::kBool);
                         }),
                         {"same dtype", place}),
      thrown<c10::Error>("OfDoubles", forward([](Subject&) {
                           return torch::ones({8, 4}, torch::kDouble);
                         }),
                         {"same dtype", place}),
      thrown<c10::Error>("OfComplexNumbers", forward([](Subject&) {
                           return torch::ones({8, 4}, torch::kComplexFloat);
                         }),
                         {"same dtype", place}),
      thrown<c10::Error>("TooWide", forward([](Subject&) {
                           return torch::rand({8, 5});
                         }),
                         {"cannot be multiplied (2x5 and 4x5)", place}),
      thrown<c10::Error>("OneDimensionTooFew", forward([](Subject&) { return torch::rand({8}); }),
                         {place}),
      // The input has a billion rows without memory behind them. Each row would be a micro-batch.
      value_error("TooManyMicroBatches",
                  [](Subject&) {
                    GPipe pipe(two_layers(), GPipeOptions({1, 1}).devices(cpus(2)).chunks(kMax));
                    pipe->forward(torch::zeros({1, 4}).expand({1000000000, 4}));
                  },
                  {"chunks(9223372036854775807)", "1000000000 rows",
                   "more than 8388608 micro-batches", "give fewer chunks"}),
      value_error("NoTensors", several([](Subject&) { return Tensors(); }), {"no input tensor"}),
      value_error("UndefinedOnly", several([](Subject&) { return Tensors{at::Tensor()}; }),
                  {"no defined tensor among the 1 tensors of input", "at least one is needed"}),
      value_error("TwoForOne", several([](Subject& s) {
                    return Tensors{s.inputs[0], s.inputs[0]};
                  }),
                  {"first layer takes a Tensor", "2 tensors were given"}),
      value_error("OneOfTwoUndefined", several([](Subject& s) {
                    return Tensors{s.inputs[0], at::Tensor()};
                  }),
                  {"first layer takes a Tensor", "2 tensors were given"}),
      value_error("SecondOnAnotherDevice", several([](Subject& s) {
                    return Tensors{s.inputs[0], torch::rand({8}, torch::kMeta)};
                  }),
                  {"input 1 is on meta", "first partition is on cpu"}),
      own_pipe<c10::ValueError>("OfDifferentRows", [=] { return nn::Sequential(add); },
                                {torch::rand({4, 1}), torch::rand({2, 1})},
                                {"input 1 has 2 rows", "input 0 has 4", "same batch size"}),
      own_pipe<c10::ValueError>(
          "OneForAPair",
          [] {
            return nn::Sequential(layer<std::tuple<at::Tensor, at::Tensor>, at::Tensor>(
                [](auto x) { return std::get<0>(x); }));
          },
          {torch::rand({4, 1})},
          {"first layer takes a std::tuple<Tensor, Tensor>", "1 tensors were given"}),
      value_error("SeveralOutputsAsOne",
                  [=](Subject&) {
                    GPipe(nn::Sequential(split), GPipeOptions({1}).devices(cpus(1)))
                        ->forward(torch::rand({4, 1}));
                  },
                  {"the model gives 2 values", "std::vector<Tensor>"}),
      own_pipe<c10::ValueError>(
          "ScalarOutputs",
          [] {
            return nn::Sequential(
                layer<at::Tensor, at::Tensor>([](at::Tensor x) { return x.sum(); }));
          },
          {torch::rand({4, 1})}, {"output 0", "a scalar", "one value for each row", "step()"}),
      returned<int64_t>("ANumber", "long"),
      returned<torch::OrderedDict<std::string, at::Tensor>>(
          "AnOrderedDict", "torch::OrderedDict<std::string, Tensor>"),
      returned<std::map<std::string, at::Tensor>>("AMap", "std::map<std::string, Tensor>"),
      returned<std::unordered_map<std::string, at::Tensor>>(
          "AnUnorderedMap", "std::unordered_map<std::string, Tensor>"),
      returned<std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>>(
          "WhatAnLstmReturns", "std::tuple<Tensor, std::tuple<Tensor, Tensor>>"),
      returned<std::map<std::string, std::map<std::string, std::vector<Tensors>>>>(
          "AMapOfMaps",
          "std::map<std::string, std::map<std::string, std::vector<std::vector<Tensor>>>>"),
      returned<std::map<std::string,
                        std::map<std::string, std::map<std::string, std::vector<Tensors>>>>>(
          "AMapOfMapsOfMaps",
          "std::map<std::string, std::map<std::string, std::map<std::string, std::vector<st..."),
      own_pipe<c10::Error>(
          "ALayerThatTakesAnotherType", [=] { return nn::Sequential(split, nn::Linear(1, 1)); },
          {torch::rand({4, 1})}, {"to be of type at::Tensor", "stage 1, micro-batch 0, layer 1"}),
      own_pipe<c10::ValueError>("FromInsideALayer",
                                [] {
                                  auto inner = std::make_shared<Subject>();
                                  return nn::Sequential(layer<at::Tensor, at::Tensor>(
                                      [inner](at::Tensor x) { return inner->pipe->forward(x); }));
                                },
                                {torch::rand({4, 4})},
                                {"from inside a layer", "into the outer Sequential", "stage 0"}),
      thrown<c10::Error>("BackwardTwice",
                         [](Subject& s) {
                           // Only the input's gradient is asked for, because the parameters'
                           // gradients must stay as they were.
                           const at::Tensor x = s.inputs[0].clone().requires_grad_();
                           const at::Tensor y = s.pipe->forward(x).sum();
                           (void)torch::autograd::grad({y}, {x});
                           (void)torch::autograd::grad({y}, {x});
                         },
                         {"second time"}),
      thrown<c10::Error>("BackwardThatMakesAGraph",
                         [](Subject& s) {
                           const at::Tensor x = s.inputs[0].clone().requires_grad_();
                           (void)torch::autograd::grad({s.pipe->forward(x).sum()}, {x}, {}, true,
                                                       true);
                         },
                         {"cannot be differentiated twice", "unpartitioned model"}),
      thrown<c10::Error>("GradientOfAnotherShape",
                         [](Subject& s) {
                           s.pipe->forward(s.inputs[0]).backward(torch::ones({8, 4}));
                         },
                         {"[8, 4]", "[8, 3]"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Forward, WrongCall, ::testing::ValuesIn(forwards()), testing::row_name);

std::vector<Call> steps() {
  const auto give = [](std::function<Tensors(Subject&)> inputs) {
    return [=](Subject& s) { s.pipe->step(inputs(s), s.targets, mse); };
  };
  const auto aim = [](std::function<Tensors(Subject&)> targets) {
    return [=](Subject& s) { s.pipe->step(s.inputs, targets(s), mse); };
  };
  const auto lose = [](LossFn loss) {
    return [=](Subject& s) { s.pipe->step(s.inputs, s.targets, loss); };
  };
  const std::string place = "stage 2, micro-batch 0, the loss function";
  return {
      value_error("NoInputs", give([](Subject&) { return Tensors(); }), {"no input tensor"}),
      value_error("UndefinedInput", give([](Subject&) { return Tensors{at::Tensor()}; }),
                  {"no defined tensor among the 1 tensors of input"}),
      value_error("ScalarInput", give([](Subject&) { return Tensors{torch::rand({})}; }),
                  {"input 0 has no dimension"}),
      value_error("InputOnAnotherDevice", give([](Subject&) {
                    return Tensors{torch::rand({8, 4}, torch::kMeta)};
                  }),
                  {"input 0 is on meta", ".to()"}),
      value_error("TwoInputsForOne", give([](Subject& s) {
                    return Tensors{s.inputs[0], s.inputs[0]};
                  }),
                  {"first layer takes a Tensor", "2 tensors were given"}),
      thrown<c10::Error>("InputOfIntegers", give([](Subject&) {
                           return Tensors{torch::ones({8, 4}, torch::kLong)};
                         }),
                         {"same dtype", "stage 0, micro-batch 0, layer 0 ('0')"}),
      value_error("InputWithoutRowsButTargets", give([](Subject&) {
                    return Tensors{torch::rand({0, 4})};
                  }),
                  {"the targets have 8 rows", "the inputs have 0"}),
      value_error("TargetsOfFewerRows", aim([](Subject&) {
                    return Tensors{torch::rand({6, 3})};
                  }),
                  {"the targets have 6 rows", "the inputs have 8"}),
      value_error("TargetsWithoutRows", aim([](Subject&) {
                    return Tensors{torch::rand({0, 3})};
                  }),
                  {"the targets have 0 rows", "the inputs have 8"}),
      value_error("TargetsOfDifferentRows", aim([](Subject& s) {
                    return Tensors{s.targets[0], torch::rand({7})};
                  }),
                  {"target 1 has 7 rows", "target 0 has 8"}),
      value_error("UndefinedTarget", aim([](Subject&) { return Tensors{at::Tensor()}; }),
                  {"no defined tensor among the 1 tensors of target"}),
      value_error("ScalarTarget", aim([](Subject&) { return Tensors{torch::rand({})}; }),
                  {"target 0 has no dimension"}),
      value_error("TargetOnAnotherDevice", aim([](Subject&) {
                    return Tensors{torch::rand({8, 3}, torch::kMeta)};
                  }),
                  {"target 0 is on meta", "last partition is on cpu", ".to()"}),
      value_error("NullLoss", lose(nullptr), {"empty loss function"}),
      value_error("EmptyLoss", lose(LossFn()), {"empty loss function"}),
      value_error("UndefinedLoss",
                  lose([](const Tensors&, const Tensors&) { return at::Tensor(); }),
                  {"one number per micro-batch", "got an undefined tensor", place}),
      value_error("LossPerRow", lose([](const Tensors& o, const Tensors&) { return o[0].sum(1); }),
                  {"one number per micro-batch", "a tensor of shape [2]", place}),
      value_error("LossOfNoNumber", lose([](const Tensors& o, const Tensors&) {
                    return o[0].flatten().narrow(0, 0, 0);
                  }),
                  {"one number per micro-batch", "a tensor of shape [0]", place}),
      value_error("DetachedLoss",
                  lose([](const Tensors& o, const Tensors& t) { return mse(o, t).detach(); }),
                  {"needs no gradient", "detached it", place}),
      value_error("LossOfTheTargetsOnly",
                  lose([](const Tensors&, const Tensors& t) { return t[0].mean(); }),
                  {"needs no gradient", place}),
      value_error("IntegerLoss", lose([](const Tensors& o, const Tensors&) {
                    return o[0].sum().to(torch::kLong);
                  }),
                  {"needs no gradient", place}),
      value_error("ComplexLoss", lose([](const Tensors& o, const Tensors&) {
                    return o[0].mean().to(torch::kComplexFloat);
                  }),
                  {"must be a real number", "take at::real()", place}),
      thrown<std::runtime_error>("LossThatThrows",
                                 lose([](const Tensors&, const Tensors&) -> at::Tensor {
                                   throw std::runtime_error("trouble");
                                 }),
                                 {"trouble", place}),
      thrown<std::out_of_range>(
          "LossThatAsksForAnotherTarget",
          lose([](const Tensors& o, const Tensors& t) { return mse(o, {t.at(1)}); }),
          {"was given 1 outputs and 1 targets, and asked for one behind them", place}),
      thrown<c10::Error>(
          "LossThatDoesNotTakeTheOutputs",
          lose([](const Tensors& o, const Tensors& t) { return mse({o[0].narrow(1, 0, 2)}, t); }),
          {"(2)", "(3)", place}),
      value_error("WithoutGradients",
                  [](Subject& s) {
                    torch::NoGradGuard no_grad;
                    s.pipe->step(s.inputs, s.targets, mse);
                  },
                  {"gradients are switched off", "NoGradGuard", "use forward"}),
      value_error("InInferenceMode",
                  [](Subject& s) {
                    c10::InferenceMode inference;
                    s.pipe->step(s.inputs, s.targets, mse);
                  },
                  {"gradients are switched off", "use forward"}),
      value_error("NothingToTrain",
                  [](Subject& s) {
                    for (at::Tensor& parameter : s.pipe->parameters())
                      parameter.requires_grad_(false);
                    const auto restore = [&] {
                      for (at::Tensor& parameter : s.pipe->parameters())
                        parameter.requires_grad_(true);
                    };
                    try {
                      s.pipe->step(s.inputs, s.targets, mse);
                    } catch (...) {
                      restore();
                      throw;
                    }
                    restore();
                  },
                  {"needs no gradient", "no parameter and no input"}),
      value_error("ModelWithoutLayers",
                  [](Subject& s) {
                    const GPipeOptions none{std::vector<int64_t>()};
                    GPipe(nn::Sequential(), none)->step(s.inputs, s.targets, mse);
                  },
                  {"at least one layer"}),
  };
}

INSTANTIATE_TEST_SUITE_P(Step, WrongCall, ::testing::ValuesIn(steps()), testing::row_name);

std::vector<Call> schedules() {
  const auto run = [](const StepOptions& options) {
    return [=](Subject& s) { s.pipe->step(s.inputs, s.targets, mse, options); };
  };
  const auto fixed = [&](const Schedule& schedule) {
    return run(StepOptions().schedule(schedule));
  };
  const auto written = [&](const std::string& workers) {
    return fixed(Schedule::from_text("stages 3\nmicro_batches 4\n" + workers));
  };
  const auto by_rule = [&](ScheduleGenerator generator) {
    return run(StepOptions().schedule(std::move(generator)));
  };
  const Schedule good = Schedule::one_f_one_b(3, 4);
  std::vector<std::vector<Action>> table = good.table();
  table[2].back() = {ActionKind::kInputGradient, 2, 3};
  const Schedule half_split = Schedule::create(3, 4, table);
  return {
      value_error("FewerStages", fixed(Schedule::gpipe(2, 4)),
                  {"for 2 stages", "the pipeline has 3"}),
      value_error("MoreStages", fixed(Schedule::gpipe(4, 4)),
                  {"for 4 stages", "the pipeline has 3"}),
      value_error("FewerMicroBatches", fixed(Schedule::gpipe(3, 1)),
                  {"for 1 micro-batches", "gives 4", "ScheduleGenerator"}),
      value_error("MoreMicroBatches", fixed(Schedule::gpipe(3, 8)),
                  {"for 8 micro-batches", "gives 4", "ScheduleGenerator"}),
      value_error("ForwardHalf", fixed(good.only({ActionKind::kForward})),
                  {"has no backwards", "the whole schedule"}),
      value_error("BackwardHalf", fixed(good.only({ActionKind::kBackward})),
                  {"has no forwards", "the whole schedule"}),
      value_error("NoActions", fixed(good.only({})), {"cannot be run", "there are no actions"}),
      value_error("NoWorkers", written(""), {"cannot be run", "there are no actions"}),
      value_error("FewerWorkers", fixed(Schedule::create(3, 4, {good.actions(0), good.actions(1)})),
                  {"cannot be run", "F2.0 is missing"}),
      value_error(
          "MoreWorkers",
          fixed(Schedule::create(3, 4, {good.actions(0), good.actions(1), good.actions(2), {}})),
          {"has 4 workers", "3 stages"}),
      value_error("OneStageMissing",
                  fixed(Schedule::create(3, 4, {good.actions(0), {}, good.actions(2)})),
                  {"cannot be run", "F1.0 is missing"}),
      value_error(
          "OneStageTwice",
          fixed(Schedule::create(3, 4, {good.actions(0), good.actions(0), good.actions(2)})),
          {"cannot be run", "F0.0 is there twice"}),
      value_error("BackwardsFirst",
                  fixed(Schedule::create(3, 4,
                                         {good.actions(0),
                                          good.actions(1),
                                          {good.actions(2).rbegin(), good.actions(2).rend()}})),
                  {"cannot be run", "comes before"}),
      value_error("HalfASplitBackward", fixed(half_split), {"cannot be run", "W2.3 is missing"}),
      value_error("Deadlock",
                  written("worker 0: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3\n"
                          "worker 1: F1.3 F1.2 F1.1 F1.0 B1.0 B1.1 B1.2 B1.3\n"
                          "worker 2: F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3\n"),
                  {"cannot be run", "deadlock"}),
      value_error("GeneratorThatDoesNotListen",
                  by_rule([](int64_t, int64_t) { return Schedule::gpipe(1, 1); }),
                  {"for 1 micro-batches", "gives 4"}),
      value_error("GeneratorOfMoreStages",
                  by_rule([](int64_t stages, int64_t m) { return Schedule::gpipe(stages + 1, m); }),
                  {"for 4 stages", "the pipeline has 3"}),
      thrown<std::invalid_argument>("GeneratorThatMakesNone", by_rule([](int64_t stages, int64_t) {
                                      return Schedule::gpipe(stages, 0);
                                    }),
                                    {"Schedule::gpipe", "at least 1", "0 micro-batches"}),
      thrown<std::runtime_error>("GeneratorThatThrows", by_rule([](int64_t, int64_t) -> Schedule {
                                   throw std::runtime_error("trouble");
                                 }),
                                 {"trouble"}),
      thrown<std::invalid_argument>("ScheduleForNoStages",
                                    [](Subject&) { StepOptions().schedule_for(0, 4); },
                                    {"at least 1", "0 stages"}),
      thrown<std::invalid_argument>("ScheduleForNoMicroBatches",
                                    [](Subject&) { StepOptions().schedule_for(3, 0); },
                                    {"at least 1", "0 micro-batches"}),
      thrown<std::invalid_argument>("ScheduleForMostOfBoth",
                                    [](Subject&) { StepOptions().schedule_for(kMax, kMax); },
                                    {"at most 2^24 cells", "9223372036854775807"}),
      thrown<std::invalid_argument>(
          "ScheduleForNegativeCounts",
          [](Subject&) { StepOptions().schedule(Schedule::gpipe).schedule_for(-1, kMin); },
          {"at least 1", "-1 stages"}),
  };
}

INSTANTIATE_TEST_SUITE_P(StepSchedule, WrongCall, ::testing::ValuesIn(schedules()),
                         testing::row_name);

std::vector<Call> modules() {
  std::vector<Call> rows;
  for (int64_t index : {int64_t{4}, int64_t{-5}, kMax, kMin}) {
    rows.push_back(thrown<c10::IndexError>("Layer" + std::to_string(rows.size()),
                                           [=](Subject& s) { (*s.pipe)[index]; },
                                           {"layer " + std::to_string(index), "has 4 layers"}));
  }
  const auto to = [](std::string name, c10::Device device, std::string text) {
    return thrown<c10::TypeError>(
        std::move(name), [=](Subject& s) { s.pipe->to(device); },
        {"cannot be moved to " + text, "GPipeOptions", "make a new pipeline"});
  };
  rows.push_back(to("ToTheCpu", torch::kCPU, "cpu"));
  rows.push_back(to("ToMeta", torch::kMeta, "meta"));
  rows.push_back(to("ToADeviceThatDoesNotExist", torch::Device("cuda:100"), "cuda:100"));
  rows.push_back(thrown<c10::TypeError>(
      "ToAnotherDeviceAndType",
      [](Subject& s) { static_cast<nn::Module&>(*s.pipe).to(torch::kMeta, torch::kHalf); },
      {"cannot be moved to meta"}));
  rows.push_back(thrown<c10::Error>("CastToIntegers", [](Subject& s) { s.pipe->to(torch::kLong); },
                                    {"floating point"}));
  rows.push_back(thrown<c10::Error>("Clone", [](Subject& s) { s.pipe->clone(); },
                                    {"clone()", "not been implemented"}));
  rows.push_back(thrown<c10::ValueError>(
      "WithinALayerOfAPipeline",
      [](Subject&) { GPipe pipe(nn::Sequential(Inner()), GPipeOptions({1}).devices(cpus(1))); },
      {"'0.pipe'", "is a pipeline itself", "outer Sequential"}));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Module, WrongCall, ::testing::ValuesIn(modules()), testing::row_name);

// --- Calls that look wrong but are accepted.

TEST(OddInputTest, ABatchOfNoRowsWorksWhateverTheChunks) {
  for (int64_t chunks : {int64_t{1}, int64_t{4}, kMax}) {
    GPipe pipe(nn::Sequential(nn::Linear(4, 5), nn::Linear(5, 3)),
               GPipeOptions({1, 1}).devices(cpus(2)).chunks(chunks));
    const at::Tensor output = pipe->forward(torch::rand({0, 4}));
    EXPECT_EQ(output.sizes(), (at::IntArrayRef{0, 3}));
    output.sum().backward();
    const StepResult sum = pipe->step(
        {torch::rand({0, 4})}, {}, [](const Tensors& o, const Tensors&) { return o[0].sum(); },
        StepOptions().keep_outputs(true).reduction(LossReduction::kSum));
    EXPECT_EQ(sum.loss, 0.0);
    EXPECT_EQ(sum.outputs.at(0).sizes(), (at::IntArrayRef{0, 3}));
    for (const at::Tensor& parameter : pipe->parameters()) {
      EXPECT_THAT(parameter.grad(), EqualsBitwise(torch::zeros_like(parameter)));
    }
    // A mean over no rows would be NaN, so step() refuses a loss that is a mean.
    EXPECT_THAT(
        [&] {
          pipe->step({torch::rand({0, 4})}, {torch::rand({0, 3})}, mse);
        },
        ::testing::ThrowsMessage<c10::ValueError>(
            ::testing::HasSubstr("empty mini-batch (0 rows)")));
  }
}

TEST(OddInputTest, MoreChunksThanRowsAreOneForEachRow) {
  for (int64_t chunks : {int64_t{9}, kMax - 1, kMax}) {
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Tanh()),
               GPipeOptions({1, 1}).devices(cpus(2)).chunks(chunks));
    int64_t micro_batches = 0;
    pipe->step(
        {torch::rand({8, 4})}, {}, [](const Tensors& o, const Tensors&) { return o[0].mean(); },
        StepOptions().schedule([&](int64_t stages, int64_t count) {
          micro_batches = count;
          return Schedule::gpipe(stages, count);
        }));
    EXPECT_EQ(micro_batches, 8);
    EXPECT_EQ(pipe->forward(torch::rand({8, 4})).sizes(), (at::IntArrayRef{8, 4}));
  }
}

TEST(OddInputTest, AnUndefinedTargetBesideADefinedOneArrivesAsSuch) {
  Subject subject;
  const StepResult result = subject.pipe->step(subject.inputs, {at::Tensor(), subject.targets[0]},
                                               [](const Tensors& o, const Tensors& t) {
                                                 EXPECT_FALSE(t.at(0).defined());
                                                 return mse(o, {t.at(1)});
                                               });
  EXPECT_GT(result.loss, 0);
}

TEST(OddInputTest, AnEmptyGeneratorOrObserverIsTheDefault) {
  Subject subject;
  const auto options = StepOptions().schedule(ScheduleGenerator()).on_event(nullptr);
  EXPECT_EQ(options.schedule_for(3, 4), Schedule::one_f_one_b(3, 4));
  EXPECT_NO_THROW(subject.pipe->step(subject.inputs, subject.targets, mse, options));
}

TEST(OddInputTest, AWrongCallIsNotAFailureOfALayer) {
  Subject subject;
  EXPECT_THROW(subject.pipe->forward(at::Tensor()), c10::ValueError);
  EXPECT_EQ(subject.pipe->last_failure(), std::nullopt);
  EXPECT_THROW(subject.pipe->forward(torch::ones({8, 4}, torch::kLong)), c10::Error);
  ASSERT_NE(subject.pipe->last_failure(), std::nullopt);
  EXPECT_EQ(subject.pipe->last_failure()->layer, "layer 0 ('0')");
}

TEST(OddInputTest, ACheckpointModeThatIsNoneHasATextAllTheSame) {
  EXPECT_STREQ(to_text(static_cast<Checkpoint>(7)), "unknown");
  EXPECT_FALSE(is_checkpointing());
  EXPECT_FALSE(is_recomputing());
}

TEST(OddInputTest, AModelWithoutLayersTakesNoPartitions) {
  const GPipeOptions options{std::vector<int64_t>()};
  nn::Sequential empty;
  GPipe pipe(empty, options);
  const at::Tensor input = torch::rand({0});
  EXPECT_TRUE(pipe->forward(input).is_same(input));
  EXPECT_THROW(pipe->forward(at::Tensor()), c10::ValueError);
  EXPECT_THROW(pipe->forward(Tensors()), c10::ValueError);
  EXPECT_THROW((*pipe)[0], c10::IndexError);
  EXPECT_THROW((*pipe)[-1], c10::IndexError);
}

}  // namespace
}  // namespace gpipe
