#include "balance/costs/profiler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sleeper.h"
#include "gpipe/testing/tied_product.h"
#include "meta/meta_devices.h"
#include "meta/meta_scope.h"
#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/unet.h"
#include "skip/skippable.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::Ge;
using ::testing::HasSubstr;
using testing::layer;
using ::testing::Lt;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using testing::TiedProduct;

using Function = std::function<Tensor(Tensor)>;

// A profile with quick() makes one warm-up pass and three measured passes.
TimeOptions quick() { return TimeOptions().timeout(1e-9); }
constexpr int kQuickPasses = 4;

// Checks that a model is as it was when this object was made.
class Unchanged {
 public:
  explicit Unchanged(const nn::Sequential& model) : model_(model) {
    for (const Tensor& tensor : tensors()) {
      before_.push_back({tensor, tensor.detach().clone(), tensor.mutable_grad(),
                         tensor.mutable_grad().defined() ? tensor.mutable_grad().clone() : Tensor(),
                         tensor.requires_grad()});
    }
    for (const auto& module : model_->modules()) modes_.push_back(module->is_training());
    generator_state_ = at::detail::getDefaultCPUGenerator().get_state();
  }

  void expect() const {
    const std::vector<Tensor> now = tensors();
    ASSERT_EQ(now.size(), before_.size());
    for (size_t k = 0; k < now.size(); ++k) {
      EXPECT_TRUE(now[k].is_same(before_[k].tensor));
      EXPECT_THAT(now[k].detach(), EqualsBitwise(before_[k].value));
      EXPECT_EQ(now[k].requires_grad(), before_[k].requires_grad);
      const Tensor gradient = now[k].mutable_grad();
      ASSERT_EQ(gradient.defined(), before_[k].gradient.defined());
      if (!gradient.defined()) continue;
      EXPECT_TRUE(gradient.is_same(before_[k].gradient));
      EXPECT_THAT(gradient, EqualsBitwise(before_[k].gradient_value));
    }
    std::vector<bool> modes;
    for (const auto& module : model_->modules()) modes.push_back(module->is_training());
    EXPECT_EQ(modes, modes_);
    EXPECT_THAT(at::detail::getDefaultCPUGenerator().get_state(), EqualsBitwise(generator_state_));
  }

 private:
  struct Before {
    Tensor tensor, value, gradient, gradient_value;
    bool requires_grad;
  };

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> result = model_->parameters();
    for (const Tensor& buffer : model_->buffers()) result.push_back(buffer);
    return result;
  }

  nn::Sequential model_;
  std::vector<Before> before_;
  std::vector<bool> modes_;
  Tensor generator_state_;
};

void sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// A layer that sleeps for these numbers of milliseconds.
auto sleeper(int forward, int backward) {
  return testing::sleeper(std::chrono::milliseconds(forward), std::chrono::milliseconds(backward));
}

TEST(ProfileTimes, AreTheLayersOwn) {
  nn::Sequential model(nn::Linear(2, 2), sleeper(40, 0), nn::Linear(2, 2), sleeper(0, 40));
  const std::vector<LayerTimes> times = profile_times(model, at::rand({4, 2}), quick());
  ASSERT_THAT(times, SizeIs(4));
  EXPECT_GE(times[1].forward, 0.04);
  EXPECT_GE(times[3].backward, 0.04);
  for (const double other : {times[0].forward, times[0].backward, times[1].backward,
                             times[2].forward, times[2].backward, times[3].forward}) {
    EXPECT_GT(other, 0);
    EXPECT_LT(other, times[1].forward);
    EXPECT_LT(other, times[3].backward);
  }
}

TEST(ProfileTimes, PassesGoOnUntilTheTimeIsOver) {
  int calls = 0;
  nn::Sequential model(sleeper(10, 0), layer<Tensor, Tensor>([&](const Tensor& x) {
                         ++calls;
                         return x;
                       }));
  profile_times(model, at::rand({1, 1}), quick());
  EXPECT_EQ(calls, kQuickPasses);
  calls = 0;
  std::vector<TimeProgress> told;
  profile_times(
      model, at::rand({1, 1}),
      TimeOptions().timeout(0.1).progress([&](const TimeProgress& p) { told.push_back(p); }));
  ASSERT_THAT(told, SizeIs(Ge(3u)));
  EXPECT_EQ(calls, static_cast<int>(told.size()) + 1);
  for (size_t k = 0; k < told.size(); ++k) {
    EXPECT_EQ(told[k].passes, static_cast<int64_t>(k) + 1);
    EXPECT_EQ(told[k].timeout, 0.1);
  }
  EXPECT_GE(told.back().seconds, 0.1);
  for (size_t k = 3; k < told.size(); ++k) EXPECT_LT(told[k - 1].seconds, 0.1);
}

TEST(ProfileTimes, AnErrorOfTheCallbackEndsThem) {
  nn::Sequential model(nn::Linear(2, 2));
  const Tensor sample = at::rand({1, 2});
  const Unchanged unchanged(model);
  EXPECT_THAT(
      [&] {
        profile_times(model, sample, TimeOptions().progress([](const TimeProgress&) {
          throw std::runtime_error("enough");
        }));
      },
      ThrowsMessage<std::runtime_error>("enough"));
  unchanged.expect();
}

TEST(ProfileTimes, EachPassBeginsWithTheOriginalSample) {
  std::vector<float> seen;
  nn::Sequential model(layer<Tensor, Tensor>([&](Tensor x) {
                         seen.push_back(x.sum().item<float>());
                         return x.mul_(2);
                       }),
                       nn::Linear(3, 3));
  const Tensor sample = at::arange(6, at::kFloat).view({2, 3});
  profile_times(model, sample, quick());
  EXPECT_THAT(seen, AllOf(SizeIs(kQuickPasses), Each(15)));
  EXPECT_THAT(sample, EqualsBitwise(at::arange(6, at::kFloat).view({2, 3})));
}

TEST(ProfileTimes, TheMicroBatchIsTheSamplesFirstRows) {
  std::vector<int64_t> rows;
  nn::Sequential model(layer<Tensors, Tensor>([&](const Tensors& x) {
    rows.push_back(x[0].size(0));
    EXPECT_TRUE(x[1].equal(at::arange(3)));
    EXPECT_FALSE(x[2].defined());
    return x[0];
  }));
  profile_times(model, Tensors{at::rand({8, 1}), at::arange(8), Tensor()},
                quick().micro_batch_rows(3));
  EXPECT_THAT(rows, Each(3));
}

TEST(ProfileTimes, LayersRunOnAsManyThreadsAsAreAskedFor) {
  int threads = 0;
  nn::Sequential model(layer<Tensor, Tensor>([&](const Tensor& x) {
    threads = at::get_num_threads();
    return x * 2;
  }));
  profile_times(model, at::rand({1, 1}), quick());
  EXPECT_EQ(threads, at::get_num_threads());
  profile_times(model, at::rand({1, 1}), quick().cpu_threads(3));
  EXPECT_EQ(threads, 3);
}

TEST(ProfileTimes, AUNetWithItsSkips) {
  nn::Sequential model = models::unet(models::UNetOptions().depth(2).num_convs(1).base_channels(4));
  const Tensor sample = at::rand({2, 3, 16, 16});
  const Unchanged unchanged(model);
  const auto times = profile_times(model, sample, quick());
  EXPECT_EQ(times.size(), model->size());
  for (const LayerTimes& layer : times) EXPECT_GT(layer.forward, 0);
  unchanged.expect();
}

void profile_network(const nn::Sequential& model, const Tensor& sample) {
  const Unchanged unchanged(model);
  EXPECT_EQ(profile_times(model, sample, quick()).size(), model->size());
  EXPECT_EQ(profile(model, sample, ProfileOptions().timeout(1e-9)).layers.size(), model->size());
  unchanged.expect();
}

TEST(ProfileTimes, TheOtherNetworks) {
  for (const bool inplace : {false, true}) {
    profile_network(
        models::resnet(
            models::ResNetOptions({1, 2}).num_classes(5).base_planes(4).inplace(inplace)),
        at::rand({2, 3, 32, 32}));
  }
  profile_network(
      models::amoebanetd(models::AmoebaNetDOptions().num_classes(5).num_layers(3).num_filters(8)),
      at::rand({1, 3, 224, 224}));
}

TEST(ProfileTimes, NotInsideAPipeline) {
  nn::Sequential inner(nn::Linear(2, 2));
  nn::Sequential model(layer<Tensor, Tensor>([&](const Tensor& x) {
                         profile_times(inner, x.detach(), quick());
                         return x;
                       }),
                       nn::Linear(2, 2));
  EXPECT_THAT(
      [&] {
        profile_times(model, at::rand({4, 2}), quick());
      },
      ThrowsMessage<c10::ValueError>(
          AllOf(HasSubstr("inside a layer of a pipeline"), HasSubstr("layer 0 ('0')"))));
}

TEST(ProfileTimes, SeveralValuesAndWhatCannotTravel) {
  struct Own {
    Tensor value;
  };
  nn::Sequential model(
      nn::Linear(2, 2), layer<Tensor, std::tuple<Tensor, Tensor>>([](const Tensor& x) {
        return std::make_tuple(x * 2, x.detach());
      }),
      layer<std::tuple<Tensor, Tensor>, Own>([](const std::tuple<Tensor, Tensor>& pair) {
        return Own{std::get<0>(pair) + std::get<1>(pair)};
      }),
      layer<Own, Tensor>([](const Own& own) { return own.value; }), nn::Linear(2, 2));
  const auto times = profile_times(model, at::rand({4, 2}), quick());
  ASSERT_THAT(times, SizeIs(5));
  EXPECT_GT(times[2].forward, 0);
  EXPECT_EQ(times[3].forward, 0);
  EXPECT_GT(times[4].backward, 0);
}

TEST(ProfileTimes, AThousandLayers) {
  nn::Sequential model;
  for (int k = 0; k < 1000; ++k) model->push_back(nn::Linear(2, 2));
  const auto times = profile_times(model, at::rand({1, 2}), quick());
  ASSERT_THAT(times, SizeIs(1000));
  for (const LayerTimes& layer : times) {
    EXPECT_GT(layer.forward, 0);
    EXPECT_GT(layer.backward, 0);
  }
}

TEST(ProfileTimes, GradModeOfTheCallerDoesNotMatter) {
  nn::Sequential model(nn::Linear(2, 2), sleeper(0, 5));
  const c10::NoGradGuard no_grad;
  EXPECT_GE(profile_times(model, at::rand({4, 2}), quick())[1].backward, 0.005);
  EXPECT_FALSE(c10::GradMode::is_enabled());
}

TEST(ProfileTimes, AnInputThatNeedsAGradientKeepsItsOwn) {
  nn::Sequential model(sleeper(0, 5), nn::ReLU(nn::ReLUOptions(true)));
  const Tensor sample = at::rand({4, 2}).requires_grad_();
  EXPECT_GE(profile_times(model, sample, quick())[0].backward, 0.005);
  EXPECT_FALSE(sample.grad().defined());
  EXPECT_TRUE(sample.requires_grad());
}

class LeavesTheModel : public ::testing::Test {
 protected:
  static void profile_all(const nn::Sequential& model, const Tensor& sample) {
    const Unchanged unchanged(model);
    profile_times(model, sample, quick());
    unchanged.expect();
    profile_sizes(model, sample);
    unchanged.expect();
    profile(model, sample, ProfileOptions().timeout(1e-9));
    unchanged.expect();
  }
};

TEST_F(LeavesTheModel, BatchNormAndDropoutInEvaluationMode) {
  nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Dropout(0.5),
                       nn::ReLU(nn::ReLUOptions(true)), nn::Linear(4, 1));
  bool training = false;
  model->push_back(layer<Tensor, Tensor>([&, modules = model.ptr().get()](const Tensor& x) {
    training = (*modules)[1]->is_training() && (*modules)[2]->is_training();
    return x;
  }));
  model->eval();
  model[4]->train();
  profile_all(model, at::rand({8, 3}));
  EXPECT_TRUE(training);
}

TEST_F(LeavesTheModel, WithGradientsAndFrozenLayers) {
  nn::Sequential model(nn::Linear(3, 4), nn::Linear(4, 4), nn::Linear(4, 1));
  model->forward(at::rand({2, 3})).sum().backward();
  model[1]->parameters()[0].mutable_grad().reset();
  for (const Tensor& parameter : model[0]->parameters()) parameter.set_requires_grad(false);
  profile_all(model, at::rand({8, 3}));
}

TEST_F(LeavesTheModel, AllFrozen) {
  nn::Sequential model(nn::Linear(3, 4), nn::Linear(4, 4));
  for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  profile_all(model, at::rand({8, 3}));
}

TEST_F(LeavesTheModel, TiedWeights) {
  nn::Linear first(4, 4);
  nn::Sequential model(first, nn::Tanh(), TiedProduct(first->weight));
  profile_all(model, at::rand({8, 4}));
}

TEST_F(LeavesTheModel, IntegerInputs) {
  nn::Sequential model(nn::Embedding(10, 4), nn::Linear(4, 4));
  profile_all(model, at::arange(6).view({2, 3}));
}

// The model is as before although a layer has changed a parameter and then thrown, in the forward
// or the backward of one pass.
TEST_F(LeavesTheModel, ALayerThatThrows) {
  for (const bool backward : {false, true}) {
    for (const int bad_pass : {1, 3}) {
      int passes = 0;
      nn::Sequential model(nn::Linear(2, 2), nn::BatchNorm1d(2));
      model->push_back(
          "bad", layer<Tensor, Tensor>([&](const Tensor& x) {
            at::rand({1});
            model[0]->parameters()[0].variable_data().add_(1);
            if (++passes < bad_pass) return x;
            if (!backward) throw std::runtime_error("no more");
            Tensor y = x * 1;
            y.register_hook([](const Tensor&) { throw std::runtime_error("no more"); });
            return y;
          }));
      model->push_back(nn::Linear(2, 2));
      model->eval();
      model->parameters()[0].mutable_grad() = at::rand({2, 2});
      const Tensor sample = at::rand({4, 2});
      const Unchanged unchanged(model);
      EXPECT_THAT(([&] { profile_times(model, sample, quick()); }),
                  ThrowsMessage<std::runtime_error>(
                      AllOf(HasSubstr("no more"), HasSubstr("layer 2 ('bad')"))));
      unchanged.expect();
      passes = 0;
      EXPECT_THROW(profile(model, sample), std::runtime_error);
      unchanged.expect();
    }
  }
}

// A layer that keeps `times` tensors of its input's size.
auto saver(int times) {
  return layer<Tensor, Tensor>([=](Tensor x) {
    for (int k = 0; k < times; ++k) x = x.tanh();
    return x;
  });
}

TEST(ProfileSizes, AreWhatIsKeptAndParameters) {
  nn::Sequential model(nn::Linear(4, 4), saver(1), saver(3),
                       layer<Tensor, Tensor>([](const Tensor& x) { return x + 1; }));
  const Tensor sample = at::rand({2, 4});
  constexpr int64_t kActivation = 2 * 4 * 4;
  constexpr int64_t kParameters = (4 * 4 + 4) * 4;
  EXPECT_THAT(profile_sizes(model, sample),
              ElementsAre(2 * kParameters, kActivation, 3 * kActivation, 0));
  EXPECT_THAT(profile_sizes(model, sample, SizeOptions().chunks(5).param_scale(0)),
              ElementsAre(0, 5 * kActivation, 15 * kActivation, 0));
  EXPECT_THAT(profile_sizes(model, sample, SizeOptions().param_scale(ParamScale::kAmsgrad)),
              ElementsAre(5 * kParameters, kActivation, 3 * kActivation, 0));
  EXPECT_THAT(profile_sizes(model, sample, SizeOptions().micro_batch_rows(1).param_scale(0)),
              ElementsAre(0, kActivation / 2, 3 * kActivation / 2, 0));
}

TEST(ProfileSizes, AnOutputThatTheNextLayerKeepsIsTheFormerLayers) {
  // A linear layer keeps its input for the gradient of its weight.
  nn::Sequential model(nn::Linear(4, 8), nn::Linear(8, 2));
  EXPECT_THAT(profile_sizes(model, at::rand({2, 4}), SizeOptions().param_scale(0)),
              ElementsAre(2 * 8 * 4, 0));
}

TEST(ProfileSizes, TiedWeightsCountOnce) {
  nn::Linear first(nn::LinearOptions(4, 4).bias(false));
  nn::Sequential model(first, TiedProduct(first->weight));
  EXPECT_THAT(profile_sizes(model, at::rand({2, 4}), SizeOptions().param_scale(1)),
              ElementsAre(4 * 4 * 4 + 2 * 4 * 4, 0));
}

TEST(ProfileSizes, AreTheSameOnMeta) {
  const auto make = [] {
    return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::Dropout(0.5), nn::Linear(8, 8),
                          nn::Sigmoid());
  };
  nn::Sequential model = make();
  const nn::Sequential on_meta = [&] {
    MetaScope meta;
    return make();
  }();
  const Tensor sample = at::rand({6, 4});
  EXPECT_EQ(profile_sizes(on_meta, sample.to(at::kMeta)), profile_sizes(model, sample));
  const Profile measured = profile(on_meta, sample.to(at::kMeta));
  const Profile expected = profile(model, sample, ProfileOptions().timeout(1e-9));
  for (size_t k = 0; k < model->size(); ++k) {
    EXPECT_EQ(measured.layers[k].kept, expected.layers[k].kept) << k;
    EXPECT_EQ(measured.layers[k].output, expected.layers[k].output) << k;
    EXPECT_EQ(measured.layers[k].forward, 0) << k;
    EXPECT_GT(expected.layers[k].forward, 0) << k;
  }
  for (const Tensor& parameter : on_meta->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

// Under the caller's autocast a layer keeps its output and a copy of its weight, both in the lower
// precision. A profile on meta must count the same bytes as one on the CPU.
TEST(ProfileAll, AutocastHoldsOnMetaAsOnTheCpu) {
  const auto make = [] {
    return nn::Sequential(nn::Linear(32, 32), nn::Tanh(), nn::Linear(32, 32));
  };
  const nn::Sequential on_meta = [&] {
    const MetaScope meta;
    return make();
  }();
  const at::Tensor sample = at::rand({8, 32});
  const auto options = ProfileOptions().timeout(1e-9);
  const Profile plain = profile(on_meta, sample.to(at::kMeta), options);
  EXPECT_EQ(plain.autocast, "");
  const testing::AutocastScope autocast(at::kCPU, at::kBFloat16);
  const Profile counted = profile(on_meta, sample.to(at::kMeta), options);
  const Profile measured = profile(make(), sample, options);
  EXPECT_EQ(counted.autocast, "bfloat16");
  EXPECT_EQ(measured.autocast, "bfloat16");
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(counted.layers[k].kept, measured.layers[k].kept) << k;
    EXPECT_EQ(counted.layers[k].output, measured.layers[k].output) << k;
    EXPECT_NE(counted.layers[k].kept, plain.layers[k].kept) << k;
  }
}

// With deferred batch norms a norm keeps two moments of each channel in double until the
// mini-batch's end. The graph keeps two more tensors in float, which the norm gets instead of its
// running statistics.
TEST(ProfileAll, DeferredBatchNormsGatherMoments) {
  constexpr int64_t kChannels = 1000;
  nn::Sequential model(nn::Linear(8, kChannels), nn::BatchNorm1d(kChannels), nn::Tanh());
  const Tensor sample = torch::rand({16, 8});
  const auto of = [&](bool deferred) {
    return profile(model, sample, ProfileOptions().timeout(1e-9).deferred_batch_norm(deferred));
  };
  const Profile plain = of(false);
  const Profile deferred = of(true);
  EXPECT_FALSE(plain.deferred_batch_norm);
  EXPECT_TRUE(deferred.deferred_batch_norm);
  constexpr int64_t kMore = 2 * kChannels * (sizeof(double) + sizeof(float));
  EXPECT_EQ(deferred.layers[1].kept - plain.layers[1].kept, kMore);
  EXPECT_EQ(deferred.layers[0].kept, plain.layers[0].kept);
  EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 0)
      << "profiling must leave num_batches_tracked as it was";
  const std::vector<int64_t> sizes =
      profile_sizes(model, sample, SizeOptions().deferred_batch_norm(true));
  EXPECT_EQ(sizes[1] - profile_sizes(model, sample)[1], kMore);
}

TEST(ProfileSizes, OfAModelThatFitsNoMachine) {
  nn::Sequential model = [] {
    MetaScope meta;
    return nn::Sequential(nn::Linear(nn::LinearOptions(1 << 20, 1 << 20).bias(false)), nn::Tanh());
  }();
  const Tensor sample = at::rand({1, 1 << 20}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(profile_sizes(model, sample), ElementsAre(int64_t{1} << 43, int64_t{1} << 22));
}

struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"skip"}, {}) {}
  Tensor forward(Tensor x) {
    stash("skip", x);
    return x.tanh();
  }
};

struct PopImpl : nn::Module, skip::Skippable {
  PopImpl() : Skippable({}, {"skip"}) {}
  Tensor forward(const Tensor& x) { return x.sum(1) + pop("skip").sum(1); }
};

TEST(ProfileAll, HoldsEverything) {
  nn::Sequential model;
  model->push_back("linear", nn::Linear(4, 8));
  model->push_back("stash", std::make_shared<StashImpl>());
  model->push_back("norm", nn::BatchNorm1d(8));
  model->push_back("pop", std::make_shared<PopImpl>());
  const Profile result =
      profile(model, at::rand({6, 4}), ProfileOptions().timeout(1e-9).micro_batch_rows(2));
  EXPECT_FALSE(result.device.empty());
  EXPECT_EQ(result.batch_rows, 2);
  EXPECT_EQ(result.input, 2 * 4 * 4);
  ASSERT_THAT(result.layers, SizeIs(4));
  constexpr int64_t kActivation = 2 * 8 * 4;
  EXPECT_EQ(result.layers[0].name, "linear");
  EXPECT_EQ(result.layers[0].parameters, (4 * 8 + 8) * 4);
  EXPECT_EQ(result.layers[0].output, kActivation);
  EXPECT_EQ(result.layers[1].name, "stash");
  EXPECT_EQ(result.layers[1].kept, kActivation);
  EXPECT_EQ(result.layers[2].parameters, 2 * 8 * 4);
  EXPECT_EQ(result.layers[2].buffers, 2 * 8 * 4 + 8);
  EXPECT_EQ(result.layers[3].output, 2 * 4);
  for (const LayerProfile& layer : result.layers) {
    EXPECT_GT(layer.forward, 0);
    EXPECT_GT(layer.backward, 0);
  }
  ASSERT_THAT(result.skips, SizeIs(1));
  EXPECT_EQ(result.skips[0].from, 1);
  EXPECT_EQ(result.skips[0].to, 3);
  EXPECT_EQ(result.skips[0].bytes, kActivation);
}

// Ctrl-C must not have to wait for the end of a pass. So a profile can be ended after each layer,
// also in the warm-up pass, which comes before any call of `progress`.
TEST(ProfileAll, CanBeEndedAfterEachLayer) {
  struct Stop {};
  const nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
  for (const int64_t threads : {0, 1}) {
    // A pass with whole backwards makes 6 calls, so 1 to 6 end the profile in the warm-up pass, and
    // 8 ends it in the first measured pass.
    for (const int end : {1, 4, 6, 8}) {
      int calls = 0;
      EXPECT_THROW(
          (void)profile(model, torch::rand({2, 4}),
                        ProfileOptions().timeout(1e-3).cpu_threads(threads).after_each_layer([&] {
                          if (++calls == end) throw Stop();
                        })),
          Stop);
      EXPECT_EQ(calls, end);
    }
    int calls = 0;
    int passes = 0;
    const auto count = [&](const TimeProgress&) { ++passes; };
    (void)profile(
        model, torch::rand({2, 4}),
        ProfileOptions().timeout(1e-3).cpu_threads(threads).progress(count).after_each_layer(
            [&] { ++calls; }));
    // A pass of whole backwards calls the function six times, a pass of split ones nine times.
    EXPECT_EQ(calls, 6 * (passes + 2) + 9 * (passes + 1));
  }
}

TEST(ProfileAll, HalvesOfABackwardAreTheLayersOwn) {
  constexpr int64_t kWide = 256;
  constexpr int64_t kRows = 64;
  constexpr int64_t kActivation = kRows * kWide * 4;
  const nn::Sequential model(nn::Linear(kWide, kWide), nn::Linear(kWide, kWide), nn::ReLU());
  const Profile measured = profile(model, at::rand({kRows, kWide}), ProfileOptions().timeout(1e-9));
  for (const LayerProfile& layer : measured.layers) {
    ASSERT_TRUE(layer.split);
    EXPECT_GT(layer.split->input, 0);
    EXPECT_GT(layer.split->weight, 0);
  }
  // The weight gradient of a linear layer needs the layer's input and the gradient of its output.
  // The input of layer 0 is the sample, which is not freed, so only the gradient counts there.
  EXPECT_EQ(measured.layers[0].split->waiting, kActivation);
  EXPECT_EQ(measured.layers[1].split->waiting, 2 * kActivation);
  EXPECT_EQ(measured.layers[2].split->waiting, 0);

  const Profile whole =
      profile(model, at::rand({kRows, kWide}), ProfileOptions().timeout(1e-9).split(false));
  EXPECT_FALSE(whole.layers[1].split);
  EXPECT_GT(whole.layers[1].backward, 0);
}

TEST(ProfileAll, HalvesOfABackwardHaveTimesOfTheirOwn) {
  nn::Linear linear(4, 4);
  linear->weight.register_hook([](const Tensor&) { sleep(60); });
  const nn::Sequential model(nn::Linear(4, 4), linear, sleeper(0, 40));
  const Profile measured = profile(model, at::rand({2, 4}), ProfileOptions().timeout(1e-9));
  const LayerProfile& weights = measured.layers[1];
  const LayerProfile& inputs = measured.layers[2];
  EXPECT_GE(weights.backward, 0.06);
  EXPECT_GE(weights.split->weight, 0.06);
  EXPECT_LT(weights.split->input, 0.04);
  EXPECT_GE(inputs.split->input, 0.04);
  EXPECT_LT(inputs.split->weight, 0.04);
}

TEST(ProfileAll, LayersThatMustNotBeSeparated) {
  struct SameImpl : nn::Module, skip::Skippable {
    SameImpl() : Skippable({"skip"}, {}) {}
    Tensor forward(Tensor x) {
      stash("skip", x);
      return x;
    }
  };
  nn::Sequential model(nn::Linear(4, 8), std::make_shared<SameImpl>(),
                       nn::ReLU(nn::ReLUOptions(true)), std::make_shared<PopImpl>());
  const Tensor sample = at::rand({2, 4});
  EXPECT_THAT([&] { profile_times(model, sample, quick()); },
              ThrowsMessage<c10::Error>(AllOf(HasSubstr("in place"), HasSubstr("layer "))));
  const std::vector<LayerRange> together = {{1, 2}};
  const auto times = profile_times(model, sample, quick().keep_together(together));
  EXPECT_GT(times[1].forward, 0);
  EXPECT_EQ(times[2].forward, 0);
  EXPECT_GT(times[3].forward, 0);
  const Profile result =
      profile(model, sample, ProfileOptions().timeout(1e-9).keep_together(together));
  EXPECT_EQ(result.layers[1].output, 0);
  EXPECT_EQ(result.layers[2].output, 2 * 8 * 4);
  EXPECT_EQ(profile_sizes(model, sample, SizeOptions().keep_together(together)).size(), 4u);
}

TEST(ProfileAll, WorkspaceIsWhatIsHeldBesideWhatIsKept) {
  nn::Sequential model(layer<Tensor, Tensor>([](const Tensor& x) {
                         Tensor y = x.tanh();
                         (void)at::rand({1000});  // a workspace, freed at once
                         return y;
                       }),
                       layer<Tensor, Tensor>([](const Tensor& x) { return x + 1; }));
  const Profile result =
      profile(model, at::rand({10, 10}).requires_grad_(), ProfileOptions().timeout(1e-9));
  EXPECT_EQ(result.layers[0].kept, 400);
  EXPECT_EQ(result.layers[0].workspace, 4000);
  // The output of layer 1 is not kept. Its backward holds the loss itself, and the loss's gradient,
  // which it passes on.
  EXPECT_EQ(result.layers[1].kept, 0);
  EXPECT_THAT(result.layers[1].workspace, AllOf(Ge(400), Lt(500)));
}

TEST(ProfileAll, AUNetOnMetaHoldsWhatItDoesOnTheCpu) {
  const auto make = [] {
    return models::unet(models::UNetOptions().depth(2).num_convs(1).base_channels(4));
  };
  const nn::Sequential model = make();
  const nn::Sequential on_meta = [&] {
    MetaScope meta;
    return make();
  }();
  const Tensor sample = at::rand({2, 3, 16, 16});
  const Profile expected = profile(model, sample, ProfileOptions().timeout(1e-9));
  const Profile measured = profile(on_meta, sample.to(at::kMeta));
  ASSERT_EQ(measured.layers.size(), expected.layers.size());
  for (size_t k = 0; k < expected.layers.size(); ++k) {
    EXPECT_EQ(measured.layers[k].kept, expected.layers[k].kept) << expected.layers[k].name;
    EXPECT_EQ(measured.layers[k].output, expected.layers[k].output) << expected.layers[k].name;
  }
  ASSERT_EQ(measured.skips.size(), 2u);
  for (size_t k = 0; k < 2; ++k) EXPECT_EQ(measured.skips[k].bytes, expected.skips[k].bytes);
}

TEST(ProfileAll, OnAMetaDeviceOfSeveral) {
  install_meta_devices();
  const c10::Device second(c10::kMeta, 1);
  nn::Sequential model;
  Tensor sample;
  {
    const c10::DeviceGuard guard(second);
    MetaScope meta;
    model = nn::Sequential(nn::Linear(2, 2), nn::Tanh());
    sample = at::rand({4, 2});
  }
  ASSERT_EQ(sample.device(), second);
  EXPECT_EQ(profile(model, sample).layers[1].kept, 4 * 2 * 4);
}

}  // namespace
}  // namespace gpipe::balance
