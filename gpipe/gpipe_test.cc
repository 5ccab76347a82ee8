// Tests of the module's interface: what construction refuses and with which message, access to the
// layers, names, moving, saved files. transparency_test, forward_test and step_test check what a
// pipeline computes.
#include "gpipe/gpipe.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <functional>
#include <iterator>
#include <sstream>
#include <type_traits>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::cpus;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Sequential two_layers() { return nn::Sequential(nn::Linear(4, 5), nn::Linear(5, 3)); }

std::function<void()> make(const nn::Sequential& model, const GPipeOptions& options) {
  return [=] { GPipe pipe(model, options); };
}

// A layer whose parameter can also belong to another layer.
struct ScaleImpl : nn::Module {
  explicit ScaleImpl(const torch::Tensor& shared) : scale(register_parameter("scale", shared)) {}
  torch::Tensor forward(torch::Tensor x) { return x * scale; }
  torch::Tensor scale;
};
TORCH_MODULE(Scale);

TEST(GPipeConstruction, RefusesABalanceThatDoesNotSumUp) {
  const auto expected = [](const char* balance, const char* sum) {
    return ThrowsMessage<c10::ValueError>(
        AllOf(HasSubstr(balance), HasSubstr(sum), HasSubstr("2 layers"),
              HasSubstr("gpipe::balance::balance_by_time"), HasSubstr("balance/balance.h")));
  };
  EXPECT_THAT(make(two_layers(), {{1}}), expected("{1}", "sums up to 1"));
  EXPECT_THAT(make(two_layers(), {{1, 2}}), expected("{1, 2}", "sums up to 3"));
}

TEST(GPipeConstruction, RefusesAMissingBalanceAndTellsHowToGetOne) {
  EXPECT_THAT(make(two_layers(), GPipeOptions(std::vector<int64_t>())),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("empty"), HasSubstr("2 layers"), HasSubstr("balance_by_size"))));
}

TEST(GPipeConstruction, RefusesAPartitionWithoutLayers) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{0, 2}, {2, 0}, {-1, 3}}) {
    EXPECT_THAT(make(two_layers(), GPipeOptions(balance)),
                ThrowsMessage<c10::ValueError>(AllOf(
                    HasSubstr("at least one layer"),
                    HasSubstr("{" + std::to_string(balance[0]) + ", "), HasSubstr("balance_by_"))));
  }
}

TEST(GPipeConstruction, RefusesChunksBelowOne) {
  for (int64_t chunks : {0, -1}) {
    EXPECT_THAT(make(two_layers(), GPipeOptions({2}).chunks(chunks)),
                ThrowsMessage<c10::ValueError>(
                    AllOf(HasSubstr("at least 1"), HasSubstr("got " + std::to_string(chunks)))));
  }
}

TEST(GPipeConstruction, RefusesAnUnknownCheckpointModeNamingTheThree) {
  EXPECT_THAT(make(two_layers(), GPipeOptions({2}).checkpoint(static_cast<Checkpoint>(7))),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("kAlways"), HasSubstr("kExceptLast"),
                                                   HasSubstr("kNever"), HasSubstr("7"))));
}

TEST(GPipeConstruction, RefusesNegativeThreads) {
  EXPECT_THAT(make(two_layers(), GPipeOptions({2}).cpu_threads_per_stage(-1)),
              ThrowsMessage<c10::ValueError>(HasSubstr("cpu_threads_per_stage")));
}

TEST(GPipeConstruction, RefusesTooFewDevices) {
  EXPECT_THAT(
      make(two_layers(), GPipeOptions({1, 1}).devices(cpus(1))),
      ThrowsMessage<c10::IndexError>(AllOf(HasSubstr("2 partitions"), HasSubstr("only 1 device"))));
}

TEST(GPipeConstruction, RefusesTheSameLayerTwiceNamingBoth) {
  nn::Linear twice(4, 4);
  nn::Sequential model;
  model->push_back("first", twice);
  model->push_back("middle", nn::ReLU());
  model->push_back("again", twice);
  EXPECT_THAT(make(model, {{1, 2}}),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("'first'"), HasSubstr("'again'"))));
}

TEST(GPipeConstruction, RefusesAnEmptyHolder) {
  EXPECT_THAT(make(nn::Sequential(nullptr), {{1}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("empty module holder")));
}

TEST(GPipeConstruction, RefusesATensorSharedByTwoDevicesNamingBothPlaces) {
  const torch::Tensor shared = torch::ones({4});
  nn::Sequential model;
  model->push_back("a", Scale(shared));
  model->push_back("b", Scale(shared));
  EXPECT_THAT(make(model, GPipeOptions({1, 1}).devices({torch::kCPU, torch::kMeta})),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("'a.scale'"), HasSubstr("'b.scale'"),
                                                   HasSubstr("cpu"), HasSubstr("meta"))));
  EXPECT_TRUE(shared.is_cpu());
}

TEST(GPipeConstruction, WrongArgumentsLeaveTheModelAsItWas) {
  auto model = two_layers();
  EXPECT_THROW(make(model, GPipeOptions({1, 1}).devices({torch::kMeta}))(), c10::IndexError);
  EXPECT_THROW(make(model, GPipeOptions({1, 2}).devices({torch::kMeta, torch::kMeta}))(),
               c10::ValueError);
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.is_cpu());
}

TEST(GPipeConstruction, AcceptsEveryModeWithOneChunk) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    GPipe pipe(two_layers(), GPipeOptions({1, 1}).checkpoint(mode));
    EXPECT_EQ(pipe->checkpoint(), mode);
    EXPECT_EQ(pipe->chunks(), 1);
  }
}

TEST(GPipeConstruction, DropsSurplusDevices) {
  GPipe pipe(two_layers(), GPipeOptions({1, 1}).devices(
                               {torch::Device("cpu:0"), torch::kCPU, torch::kMeta, torch::kMeta}));
  EXPECT_THAT(pipe->devices(), ElementsAre(c10::Device(c10::kCPU), c10::Device(c10::kCPU)));
  for (const auto& parameter : pipe->parameters()) EXPECT_TRUE(parameter.is_cpu());
}

TEST(GPipeConstruction, DefaultDevicesAreEnoughOnACpu) {
  if (torch::cuda::is_available()) return;  // with CUDA the default is every GPU
  GPipe pipe(two_layers(), GPipeOptions({1, 1}));
  EXPECT_THAT(pipe->devices(), ElementsAre(c10::Device(c10::kCPU), c10::Device(c10::kCPU)));
}

TEST(GPipeTest, HasTheAttributesItWasGiven) {
  GPipe pipe(two_layers(),
             GPipeOptions({1, 1}).devices(cpus(2)).chunks(42).checkpoint(Checkpoint::kAlways));
  EXPECT_THAT(pipe->balance(), ElementsAre(1, 1));
  EXPECT_THAT(pipe->devices(), ElementsAre(c10::Device(c10::kCPU), c10::Device(c10::kCPU)));
  EXPECT_EQ(pipe->chunks(), 42);
  EXPECT_EQ(pipe->checkpoint(), Checkpoint::kAlways);
  EXPECT_EQ(GPipe(two_layers(), GPipeOptions({2}).devices(cpus(1)))->checkpoint(),
            Checkpoint::kExceptLast);
  std::ostringstream text;
  text << *pipe;
  EXPECT_THAT(text.str(), AllOf(HasSubstr("{1, 1}"), HasSubstr("chunks=42"), HasSubstr("always"),
                                HasSubstr("cpu")));
}

TEST(GPipeTest, PrintsItsCut) {
  GPipe pipe(nn::Sequential(nn::Linear(3, 4), nn::Linear(4, 4), nn::ReLU(),
                            nn::Linear(nn::LinearOptions(4, 1).bias(false)), nn::ReLU()),
             GPipeOptions({1, 2, 2}).devices(cpus(3)));
  std::ostringstream text;
  text << *pipe;
  EXPECT_THAT(text.str(), HasSubstr("\n  partition 0 on cpu: layer 0, 16 parameters"
                                    "\n  partition 1 on cpu: layers 1 to 2, 20 parameters"
                                    "\n  partition 2 on cpu: layers 3 to 4, 4 parameters"));
  // The text also has the lines of the layers, which LibTorch prints.
  EXPECT_THAT(text.str(), HasSubstr("(0): torch::nn::Linear(in_features=3"));
}

TEST(GPipeTest, PartitionsMayHaveCheckpointsOfTheirOwn) {
  const GPipeOptions options = GPipeOptions({1, 1}).devices(cpus(2)).checkpoint(Checkpoint::kNever);
  EXPECT_THAT(GPipe(two_layers(), options)->partition_checkpoints(),
              ElementsAre(Checkpoint::kNever, Checkpoint::kNever));
  GPipe pipe(two_layers(), GPipeOptions(options).partition_checkpoints(
                               {Checkpoint::kAlways, Checkpoint::kExceptLast}));
  EXPECT_THAT(pipe->partition_checkpoints(),
              ElementsAre(Checkpoint::kAlways, Checkpoint::kExceptLast));
  std::ostringstream text;
  text << *pipe;
  EXPECT_THAT(text.str(), HasSubstr("checkpoint={always, except_last}"));
  EXPECT_THAT(
      [&] {
        GPipe(two_layers(), GPipeOptions(options).partition_checkpoints({Checkpoint::kNever}));
      },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("1 modes"), HasSubstr("2 partitions"))));
}

TEST(GPipeTest, ActsLikeASequence) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{2}, {1, 1}}) {
    nn::Linear first(4, 5);
    nn::ReLU second;
    nn::Sequential model(first, second);
    GPipe pipe(model, GPipeOptions(balance).devices(cpus(balance.size())));
    ASSERT_EQ(pipe->size(), 2u);
    EXPECT_EQ((*pipe)[0], first.ptr());
    EXPECT_EQ((*pipe)[1], second.ptr());
    EXPECT_EQ((*pipe)[-1], second.ptr());
    EXPECT_EQ((*pipe)[-2], first.ptr());
    EXPECT_THAT([&] { (*pipe)[2]; }, ThrowsMessage<c10::IndexError>(
                                         AllOf(HasSubstr("layer 2"), HasSubstr("has 2 layers"))));
    EXPECT_THROW((*pipe)[-3], c10::IndexError);
    std::vector<std::shared_ptr<nn::Module>> seen(pipe->begin(), pipe->end());
    EXPECT_THAT(seen, ElementsAre(first.ptr(), second.ptr()));
  }
}

TEST(GPipeTest, ParametersAreTheModelsOwnUnderItsKeysWhateverTheBalance) {
  auto build = [] {
    nn::Sequential model;
    model->push_back("stem", nn::Linear(4, 4));
    model->push_back("norm", nn::BatchNorm1d(4));
    model->push_back("head", nn::Linear(4, 2));
    return model;
  };
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{3}, {1, 2}, {2, 1}, {1, 1, 1}}) {
    auto model = build();
    const auto before = model->named_parameters();
    GPipe pipe(model, GPipeOptions(balance).devices(cpus(balance.size())));
    const auto after = pipe->named_parameters();
    EXPECT_EQ(after.keys(), before.keys());
    for (const auto& entry : before) EXPECT_TRUE(after[entry.key()].is_same(entry.value()));
    EXPECT_EQ(pipe->named_buffers().keys(), model->named_buffers().keys());
    EXPECT_EQ(pipe->named_children().keys(), model->named_children().keys());
    for (const auto& child : model->named_children()) {
      EXPECT_EQ(pipe->named_children()[child.key()], child.value());
    }
  }
}

// After such a change the next call of any kind throws and names the key, because it would run
// other layers than named_parameters() lists.
TEST(GPipeTest, WhatIsRegisteredInItLaterIsAnErrorThatNamesIt) {
  const auto changes = std::vector<std::pair<std::string, std::function<void(GPipe&)>>>{
      {"layer 1 of the pipeline was replaced or unregistered (there is '1' now)",
       [](GPipe& pipe) { pipe->replace_module("1", nn::Linear(4, 4)); }},
      {"layer 0 of the pipeline was replaced or unregistered (there is '1' now)",
       [](GPipe& pipe) { pipe->unregister_module("0"); }},
      {"layer 1 of the pipeline was replaced or unregistered after",
       [](GPipe& pipe) { pipe->unregister_module("1"); }},
      {"the module 'extra' was registered",
       [](GPipe& pipe) { pipe->register_module("extra", nn::Linear(4, 4)); }},
      {"the parameter 'scale' was registered",
       [](GPipe& pipe) { pipe->register_parameter("scale", torch::ones({4})); }},
      {"the buffer 'mask' was registered",
       [](GPipe& pipe) { pipe->register_buffer("mask", torch::ones({4})); }},
  };
  const torch::Tensor x = torch::randn({4, 4});
  for (const auto& [text, change] : changes) {
    SCOPED_TRACE(text);
    GPipe pipe(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)),
               GPipeOptions({1, 1}).devices({torch::kCPU, torch::kCPU}));
    change(pipe);
    const auto refused = ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr(text));
    const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
    EXPECT_THAT([&] { pipe->forward(x); }, refused);
    EXPECT_THAT([&] { pipe->step({x}, {}, loss); }, refused);
    EXPECT_THAT([&] { pipe->evaluate({x}, {}, loss); }, refused);
    EXPECT_THAT([&] { pipe->clip_grad_norm_(1); }, refused);
    EXPECT_THAT([&] { (void)pipe->parameter_hash(); }, refused);
    EXPECT_THAT([&] { (void)pipe->sequential(); }, refused);
  }
}

TEST(GPipeTest, ListsAParameterOfSeveralLayersOnce) {
  nn::BatchNorm1d norm(4);
  struct UserImpl : nn::Module {
    explicit UserImpl(nn::BatchNorm1d norm) : norm(register_module("norm", std::move(norm))) {}
    torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
    nn::BatchNorm1d norm;
  };
  GPipe pipe(nn::Sequential(std::make_shared<UserImpl>(norm), nn::Tanh(),
                            std::make_shared<UserImpl>(norm)),
             GPipeOptions({2, 1}).devices({torch::kCPU, torch::kCPU}));
  EXPECT_EQ(pipe->parameters().size(), 2U);
  EXPECT_EQ(pipe->named_parameters().size(), 4U)
      << "each under its own key, to be saved and loaded";
}

TEST(GPipeTest, GivesThePlainModelOfTheSameLayers) {
  auto model = two_layers();
  const torch::Tensor input = torch::rand({3, 4});
  const torch::Tensor output = model->forward(input);
  const GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)).cpu_threads_per_stage(3));
  EXPECT_EQ(pipe->cpu_threads_per_stage(), 3);
  nn::Sequential plain = pipe->sequential();
  EXPECT_EQ(plain->named_children().keys(), model->named_children().keys());
  EXPECT_EQ(plain->ptr(0), model->ptr(0));
  EXPECT_EQ(plain->ptr(1), model->ptr(1));
  EXPECT_THAT(plain->forward(input), EqualsBitwise(output));
}

TEST(GPipeTest, TakesTheModelsTrainingFlagAndLeavesThoseOfLayers) {
  nn::BatchNorm1d frozen(4);
  nn::Sequential model(nn::Linear(4, 4), frozen);
  frozen->eval();
  GPipe pipe(model, GPipeOptions({1, 1}).devices(cpus(2)));
  EXPECT_TRUE(pipe->is_training());
  EXPECT_TRUE((*pipe)[0]->is_training());
  EXPECT_FALSE(frozen->is_training());

  auto evaluated = two_layers();
  evaluated->eval();
  GPipe other(evaluated, GPipeOptions({1, 1}).devices(cpus(2)));
  EXPECT_FALSE(other->is_training());
  other->train();
  EXPECT_TRUE((*other)[1]->is_training());
}

TEST(GPipeTest, CannotBeMovedButCast) {
  GPipe pipe(two_layers(), GPipeOptions({1, 1}).devices(cpus(2)));
  nn::Module& module = *pipe;
  const auto refused =
      ThrowsMessage<c10::TypeError>(AllOf(HasSubstr("cannot be moved"), HasSubstr("GPipeOptions")));
  EXPECT_THAT([&] { pipe->to(torch::kCPU); }, refused);
  EXPECT_THAT([&] { module.to(torch::kCUDA); }, refused);
  EXPECT_THAT([&] { module.to(torch::kMeta, torch::kDouble); }, refused);
  EXPECT_THAT([&] { module.to(torch::Device("cuda:1"), torch::kHalf, true); }, refused);
  for (const auto& parameter : pipe->parameters()) {
    EXPECT_TRUE(parameter.is_cpu());
    EXPECT_EQ(parameter.dtype(), torch::kFloat);
  }
  for (torch::Dtype type : {torch::kHalf, torch::kDouble, torch::kFloat}) {
    module.to(type);
    for (const auto& parameter : pipe->parameters()) EXPECT_EQ(parameter.dtype(), type);
    EXPECT_EQ(pipe->forward(torch::ones({2, 4}, type)).dtype(), type);
  }
}

TEST(GPipeTest, AnEmptyModelPassesItsInputThrough) {
  const GPipeOptions options{std::vector<int64_t>()};
  nn::Sequential empty;
  GPipe pipe(empty, options);
  EXPECT_EQ(pipe->size(), 0u);
  EXPECT_TRUE(pipe->devices().empty());
  const torch::Tensor input = torch::rand({3}).requires_grad_();
  const torch::Tensor scalar = torch::rand({});
  EXPECT_TRUE(pipe->forward(input).is_same(input));
  const Tensors outputs = pipe->forward(Tensors{input, scalar});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(outputs[0].is_same(input));
  EXPECT_TRUE(outputs[1].is_same(scalar));
  EXPECT_THROW(pipe->step({input}, {}, [](const Tensors& o, const Tensors&) { return o[0].sum(); }),
               c10::ValueError);
}

TEST(GPipeTest, TakesTensorsOnly) {
  // The compiler refuses a model that is not a Sequential. Other systems check that at run time.
  static_assert(!std::is_constructible_v<GPipeImpl, nn::Linear, GPipeOptions>);
  GPipe pipe(two_layers(), GPipeOptions({2}).devices(cpus(1)));
  EXPECT_THROW(pipe->forward(torch::Tensor()), c10::ValueError);
  EXPECT_THROW(pipe->forward(Tensors()), c10::ValueError);
  EXPECT_THROW(pipe->forward(torch::rand({})), c10::ValueError);
}

TEST(GPipeTest, SavedFilesFitTheBareModelAndEveryOtherBalance) {
  auto build = [](uint64_t seed) {
    testing::manual_seed(seed);
    nn::Sequential model;
    model->push_back("stem", nn::Linear(4, 4));
    model->push_back("norm", nn::BatchNorm1d(4));
    model->push_back("head", nn::Linear(4, 2));
    return model;
  };
  auto expect_same = [](const nn::Module& a, const nn::Module& b) {
    for (const auto& entry : a.named_parameters()) {
      EXPECT_THAT(b.named_parameters()[entry.key()], EqualsBitwise(entry.value())) << entry.key();
    }
    for (const auto& entry : a.named_buffers()) {
      EXPECT_THAT(b.named_buffers()[entry.key()], EqualsBitwise(entry.value())) << entry.key();
    }
  };
  GPipe pipe(build(1), GPipeOptions({1, 2}).devices(cpus(2)).chunks(2));
  pipe->forward(torch::rand({6, 4}));  // so that the buffers differ from fresh ones
  std::stringstream from_pipe;
  torch::save(pipe, from_pipe);
  const std::string bytes = from_pipe.str();

  auto bare = build(2);
  std::istringstream to_bare(bytes);
  torch::load(bare, to_bare);
  expect_same(*pipe, *bare);

  GPipe other(build(3), GPipeOptions({1, 1, 1}).devices(cpus(3)));
  const Tensors before = other->parameters();
  std::istringstream to_other(bytes);
  torch::load(other, to_other);
  expect_same(*pipe, *other);
  for (size_t k = 0; k < before.size(); ++k) {
    EXPECT_TRUE(other->parameters()[k].is_same(before[k]));  // so optimizers stay valid
  }

  std::stringstream from_bare;
  torch::save(build(4), from_bare);
  torch::load(other, from_bare);
  expect_same(*build(4), *other);
}

// load() refuses a checkpoint with another shape or kind of a layer, with a layer less, or with
// more layers. The error names what differs.
TEST(GPipeTest, LoadRefusesACheckpointOfAnotherModelAndChangesNothing) {
  auto saved = [](const nn::Sequential& model) {
    std::stringstream file;
    torch::save(model, file);
    return file.str();
  };
  GPipe pipe(nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::Linear(5, 3)),
             GPipeOptions({1, 2}).devices(cpus(2)).chunks(2));
  std::vector<torch::Tensor> before;
  for (const auto& p : pipe->parameters()) before.push_back(p.detach().clone());
  for (const auto& b : pipe->buffers()) before.push_back(b.detach().clone());
  const auto expect_refused = [&](const nn::Sequential& model, const auto& text) {
    std::istringstream file(saved(model));
    EXPECT_THAT([&] { torch::load(pipe, file); }, ThrowsMessage<c10::Error>(text));
    size_t k = 0;
    for (const auto& p : pipe->parameters()) EXPECT_THAT(p, EqualsBitwise(before[k++]));
    for (const auto& b : pipe->buffers()) EXPECT_THAT(b, EqualsBitwise(before[k++]));
    EXPECT_EQ(pipe->forward(torch::rand({4, 4})).sizes(), (std::vector<int64_t>{4, 3}));
    for (const auto& b : pipe->buffers()) before.push_back(b.detach().clone());
    before.erase(before.end() - 6, before.end() - 3);  // the buffers before this forward
  };
  expect_refused(nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::Linear(5, 7)),
                 AllOf(HasSubstr("'2.weight' of shape [7, 5] for [3, 5]"),
                       HasSubstr("'2.bias' of shape [7] for [3]"), HasSubstr("nothing was loaded"),
                       HasSubstr("copy the parameters that fit")));
  expect_refused(nn::Sequential(nn::Linear(4, 9), nn::BatchNorm1d(9), nn::Linear(9, 3)),
                 AllOf(HasSubstr("'0.weight' of shape [9, 4] for [5, 4]"), HasSubstr(" more")));
  expect_refused(nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5)), HasSubstr("no layers '2'"));
  expect_refused(nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::Linear(5, 3),
                                nn::Linear(3, 3), nn::ReLU()),
                 HasSubstr("the pipeline has no layers '3', '4'"));
  // The last checkpoint lacks the running statistics, which LibTorch itself reports.
  expect_refused(
      nn::Sequential(nn::Linear(4, 5), nn::LayerNorm(nn::LayerNormOptions({5})), nn::Linear(5, 3)),
      AllOf(HasSubstr("running_mean"), HasSubstr("nothing was loaded")));
}

}  // namespace
}  // namespace gpipe
