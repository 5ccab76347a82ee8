#include "balance/balance.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/tanh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sleeper.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using testing::layer;

constexpr int kUnit = 3;  // ms; a layer's own overhead is far less

// A layer that sleeps for these numbers of units in its forward and in its backward.
auto sleeper(int forward, int backward = 0) {
  return testing::sleeper(std::chrono::milliseconds(forward * kUnit),
                          std::chrono::milliseconds(backward * kUnit));
}

TimeOptions quick() { return TimeOptions().timeout(1e-9); }

Tensor wants_gradient() { return at::rand({2, 2}).requires_grad_(); }

TEST(BalanceByTime, FollowsSleepingLayers) {
  nn::Sequential up(sleeper(1), sleeper(2), sleeper(3), sleeper(4), sleeper(5), sleeper(6));
  EXPECT_THAT(balance_by_time(2, up, at::rand({2, 2}), quick()), ElementsAre(4, 2));
  nn::Sequential down(sleeper(6), sleeper(5), sleeper(4), sleeper(3), sleeper(2), sleeper(1));
  EXPECT_THAT(balance_by_time(2, down, at::rand({2, 2}), quick()), ElementsAre(2, 4));
}

TEST(BalanceByTime, CountsBackwards) {
  nn::Sequential model(sleeper(1, 1), sleeper(1, 8), sleeper(4, 0), sleeper(2, 1));
  EXPECT_THAT(balance_by_time(2, model, wants_gradient(), quick()), ElementsAre(2, 2));
}

TEST(BalanceByTime, RecomputeCountsForwardsTwice) {
  nn::Sequential model(sleeper(0, 6), sleeper(0, 2), sleeper(4));
  EXPECT_THAT(balance_by_time(2, model, wants_gradient(), quick()), ElementsAre(1, 2));
  EXPECT_THAT(balance_by_time(2, model, wants_gradient(), quick().recompute(true)),
              ElementsAre(2, 1));
}

TEST(BalanceByTime, FasterDevicesGetMore) {
  nn::Sequential model(sleeper(2), sleeper(2), sleeper(2), sleeper(2));
  EXPECT_THAT(balance_by_time(2, model, at::rand({2, 2}), quick().slowness({3, 1})),
              ElementsAre(1, 3));
  EXPECT_THAT(balance_by_time(2, model, at::rand({2, 2}), quick().slowness({1, 3})),
              ElementsAre(3, 1));
}

TEST(BalanceByTime, KeepsLayersTogether) {
  nn::Sequential model(sleeper(2), sleeper(2), sleeper(2), sleeper(2));
  EXPECT_THAT(balance_by_time(2, model, at::rand({2, 2}), quick().keep_together({{0, 2}})),
              ElementsAre(3, 1));
}

struct Own {
  Tensor value;
};

TEST(BalanceByTime, DoesNotCutWhereNothingCanTravel) {
  nn::Sequential model(sleeper(1), layer<Tensor, Own>([](const Tensor& x) { return Own{x}; }),
                       layer<Own, Tensor>([](const Own& x) { return x.value * 1; }), sleeper(1));
  const auto balance = balance_by_time(2, model, at::rand({2, 2}), quick());
  EXPECT_NE(balance[0], 2);
  EXPECT_NO_THROW(GPipe(model, GPipeOptions(balance).devices({2, c10::Device(c10::kCPU)})));
}

TEST(BalanceByTime, ConvolutionsAndLinearLayers) {
  std::vector<int64_t> rows;
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 3, 1)),
                       layer<Tensor, Tensor>([&](const Tensor& x) {
                         rows.push_back(x.size(0));
                         return x.flatten(1);
                       }),
                       nn::Linear(3 * 4 * 4, 10));
  const Tensor sample = at::rand({2, 3, 4, 4});
  const auto balance = balance_by_time(2, model, sample, TimeOptions().timeout(0.02));
  EXPECT_EQ(balance[0] + balance[1], 3);
  EXPECT_GE(rows.size(), 4u);
  EXPECT_THAT(rows, Each(2));
}

TEST(BalanceByTime, LayersWithTwoValues) {
  nn::Sequential model(
      sleeper(1), layer<Tensor, std::tuple<Tensor, Tensor>>([](const Tensor& x) {
        return std::make_tuple(x * 2, x.detach());
      }),
      layer<std::tuple<Tensor, Tensor>, Tensor>([](const std::tuple<Tensor, Tensor>& pair) {
        return std::get<0>(pair) + std::get<1>(pair);
      }),
      sleeper(2));
  EXPECT_THAT(balance_by_time(2, model, wants_gradient(), quick()), ElementsAre(3, 1));
}

TEST(BalanceByTime, LayersTrainWhileTheModelEvaluates) {
  nn::Sequential model(nn::BatchNorm1d(2), sleeper(1));
  bool training = false;
  nn::BatchNorm1d watched(2);
  model->push_back(watched);
  model->push_back(layer<Tensor, Tensor>([&](const Tensor& x) {
    training = watched->is_training();
    return x;
  }));
  model->eval();
  const Tensor mean = watched->running_mean.clone();
  balance_by_time(2, model, at::rand({4, 2}), quick());
  EXPECT_TRUE(training);
  EXPECT_FALSE(model->is_training());
  EXPECT_FALSE(watched->is_training());
  EXPECT_THAT(watched->running_mean, EqualsBitwise(mean));
}

TEST(BalanceByTime, AModelThatHasGradientsKeepsThem) {
  nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
  model->forward(at::rand({2, 2})).sum().backward();
  const Tensor gradient = model->parameters()[0].grad();
  const Tensor value = gradient.clone();
  balance_by_time(2, model, at::rand({2, 2}), quick());
  EXPECT_TRUE(model->parameters()[0].grad().is_same(gradient));
  EXPECT_THAT(gradient, EqualsBitwise(value));
}

// A layer that keeps `times` tensors of its input's size.
auto saver(int times) {
  return layer<Tensor, Tensor>([=](Tensor x) {
    for (int k = 0; k < times; ++k) x = x.tanh();
    return x;
  });
}

TEST(BalanceBySize, FollowsKeptActivations) {
  nn::Sequential up(saver(1), saver(2), saver(3), saver(4), saver(5), saver(6));
  EXPECT_THAT(balance_by_size(2, up, wants_gradient()), ElementsAre(4, 2));
  nn::Sequential down(saver(6), saver(5), saver(4), saver(3), saver(2), saver(1));
  EXPECT_THAT(balance_by_size(2, down, wants_gradient()), ElementsAre(2, 4));
}

// A layer with parameters of `units` units, on which its output does not depend. It keeps `saves`
// tensors of its input's size.
struct ParametersImpl : nn::Module {
  ParametersImpl(int units, int saves) : saves(saves) {
    register_parameter("weight", at::rand({units, 100}));
  }
  Tensor forward(Tensor x) {
    for (int k = 0; k < saves; ++k) x = x.tanh();
    return x + 1;
  }
  int saves;
};

auto sized(int parameters, int saves) {
  return std::make_shared<ParametersImpl>(parameters, saves);
}

TEST(BalanceBySize, FollowsParameters) {
  nn::Sequential up(sized(1, 1), sized(2, 1), sized(3, 1), sized(4, 1), sized(5, 1), sized(6, 1));
  EXPECT_THAT(balance_by_size(2, up, wants_gradient(), SizeOptions().param_scale(100)),
              ElementsAre(4, 2));
  nn::Sequential down(sized(6, 1), sized(5, 1), sized(4, 1), sized(3, 1), sized(2, 1), sized(1, 1));
  EXPECT_THAT(balance_by_size(2, down, wants_gradient(), SizeOptions().param_scale(100)),
              ElementsAre(2, 4));
}

TEST(BalanceBySize, TheParametersScaleDecides) {
  nn::Sequential model(sized(1, 6), sized(2, 5), sized(3, 4), sized(4, 3), sized(5, 2),
                       sized(6, 1));
  const Tensor sample = wants_gradient();
  EXPECT_THAT(balance_by_size(2, model, sample, SizeOptions().param_scale(0)), ElementsAre(2, 4));
  EXPECT_THAT(balance_by_size(2, model, sample, SizeOptions().param_scale(100)), ElementsAre(4, 2));
  // Many micro-batches in flight count as much as large parameters.
  EXPECT_THAT(balance_by_size(2, model, sample, SizeOptions().chunks(100000)), ElementsAre(2, 4));
}

TEST(BalanceBySize, LayersWithTwoValues) {
  nn::Sequential model(
      saver(1), layer<Tensor, std::tuple<Tensor, Tensor>>([](const Tensor& x) {
        return std::make_tuple(x * 2, x.detach());
      }),
      layer<std::tuple<Tensor, Tensor>, Tensor>([](const std::tuple<Tensor, Tensor>& pair) {
        return (std::get<0>(pair) + std::get<1>(pair)).tanh();
      }),
      saver(2));
  EXPECT_THAT(balance_by_size(2, model, wants_gradient()), ElementsAre(3, 1));
}

TEST(BalanceBySize, KeepsLayersTogether) {
  nn::Sequential model(saver(1), saver(1), saver(1), saver(1));
  EXPECT_THAT(
      balance_by_size(2, model, Tensors{wants_gradient()}, SizeOptions().keep_together({{1, 3}})),
      ElementsAre(1, 3));
}

}  // namespace
}  // namespace gpipe::balance
