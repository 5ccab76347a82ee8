#include "balance/costs/flops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <optional>

#include "meta/meta_scope.h"
#include "models/unet.h"

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
namespace nn = torch::nn;

at::TensorOptions on_meta() { return at::TensorOptions().device(at::kMeta).dtype(at::kFloat); }

template <typename Make>
nn::Sequential on_meta(const Make& make) {
  const MetaScope scope;
  return make();
}

TEST(Flops, OfProducts) {
  const nn::Sequential model = on_meta([] {
    return nn::Sequential(nn::Linear(10, 20), nn::Linear(nn::LinearOptions(20, 30).bias(false)));
  });
  const std::vector<LayerWork> work = flops(model, {at::empty({7, 10}, on_meta())});
  ASSERT_EQ(work.size(), 2);
  EXPECT_EQ(work[0].forward.flops, 2 * 7 * 10 * 20);
  EXPECT_EQ(work[1].forward.flops, 2 * 7 * 20 * 30);
  EXPECT_EQ(work[1].backward.flops, 2 * 2 * 7 * 20 * 30);
  EXPECT_EQ(work[1].weights.flops, 2 * 7 * 20 * 30);
  EXPECT_EQ(work[1].forward.operators, 1);
  EXPECT_EQ(work[1].forward.bytes, 4 * (7 * 20 + 20 * 30 + 7 * 30));
}

// If the input has three dimensions, nn::Linear adds the bias by an operator of its own, which
// counts 1 for each output.
TEST(Flops, OfRowsOfRows) {
  const nn::Sequential model = on_meta([] { return nn::Sequential(nn::Linear(10, 20)); });
  EXPECT_EQ(flops(model, {at::empty({7, 3, 10}, on_meta())})[0].forward.flops,
            2 * 7 * 3 * 10 * 20 + 7 * 3 * 20);
}

TEST(Flops, OfConvolutions) {
  const nn::Sequential model = on_meta([] {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)),
                          nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).padding(1).groups(4)),
                          nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 4, 2).stride(2)));
  });
  const std::vector<LayerWork> work = flops(model, {at::empty({2, 3, 10, 10}, on_meta())});
  EXPECT_EQ(work[0].forward.flops, 2.0 * (2 * 8 * 10 * 10) * 3 * 9);
  EXPECT_EQ(work[1].forward.flops, 2.0 * (2 * 16 * 5 * 5) * 2 * 9);
  // Kernel and stride are equal, so each output comes from one pixel of the 16 input channels.
  EXPECT_EQ(work[2].forward.flops, 2.0 * (2 * 4 * 10 * 10) * 16);
}

TEST(Flops, OfFusedAttention) {
  // The sample has 2 rows of 4 heads of queries, with 10 tokens of 8 numbers. Keys have 2 heads,
  // which does not change the work.
  const auto work_of = [](bool causal, bool meta) {
    const auto attention = [causal](const at::Tensor& x) {
      const at::Tensor keys = x.narrow(1, 0, 2);
      return at::scaled_dot_product_attention(x, keys, keys, std::nullopt, 0, causal, std::nullopt,
                                              /*enable_gqa=*/true);
    };
    const nn::Sequential model(nn::Functional{attention});
    const at::Tensor sample = meta ? at::empty({2, 4, 10, 8}, on_meta()) : at::rand({2, 4, 10, 8});
    return flops(model, {sample.requires_grad_()})[0];
  };
  constexpr double kProducts = 2 * (2.0 * 2 * 4 * 10 * 10 * 8);
  for (const bool meta : {true, false}) {
    EXPECT_EQ(work_of(false, meta).forward.flops, kProducts) << meta;
    EXPECT_EQ(work_of(true, meta).forward.flops, kProducts / 2) << meta;
    EXPECT_EQ(work_of(true, meta).backward.flops, kProducts) << meta;
    EXPECT_EQ(work_of(true, meta).weights.flops, 0) << meta;
  }
}

TEST(Flops, OthersCountTheirOutputsAndViewsNothing) {
  const nn::Sequential model = on_meta([] {
    return nn::Sequential(
        nn::ReLU(), nn::Functional([](const at::Tensor& x) { return x.flatten(1).unsqueeze(0); }),
        nn::Functional([](const at::Tensor& x) { return x.squeeze(0) * 2 + x.squeeze(0); }));
  });
  const std::vector<LayerWork> work =
      flops(model, {at::empty({4, 5, 6}, on_meta()).requires_grad_()});
  EXPECT_EQ(work[0].forward.flops, 4 * 5 * 6);
  EXPECT_EQ(work[0].backward.flops, 4 * 5 * 6);
  EXPECT_EQ(work[1].forward.flops, 0);
  EXPECT_EQ(work[1].forward.bytes, 0);
  EXPECT_EQ(work[2].forward.flops, 2 * 4 * 5 * 6);
  EXPECT_EQ(work[2].forward.operators, 2);
}

TEST(Flops, AreTheSameOnTheCpu) {
  const auto make = [] {
    return models::unet(models::UNetOptions().depth(2).num_convs(2).base_channels(4));
  };
  const std::vector<LayerWork> meta = flops(on_meta(make), {at::empty({2, 3, 16, 16}, on_meta())});
  const std::vector<LayerWork> cpu = flops(make(), {at::rand({2, 3, 16, 16})});
  ASSERT_EQ(meta.size(), cpu.size());
  double sum = 0;
  for (size_t k = 0; k < meta.size(); ++k) {
    EXPECT_EQ(meta[k].forward.flops, cpu[k].forward.flops) << k;
    sum += meta[k].forward.flops;
  }
  EXPECT_GT(sum, 0);
}

TEST(Flops, DoublesWithTheRows) {
  const nn::Sequential model = on_meta(
      [] { return models::unet(models::UNetOptions().depth(2).num_convs(2).base_channels(4)); });
  const std::vector<LayerWork> two = flops(model, {at::empty({2, 3, 16, 16}, on_meta())});
  const std::vector<LayerWork> four = flops(model, {at::empty({4, 3, 16, 16}, on_meta())});
  for (size_t k = 0; k < two.size(); ++k) {
    EXPECT_EQ(2 * two[k].forward.flops, four[k].forward.flops) << k;
    EXPECT_EQ(two[k].forward.operators, four[k].forward.operators) << k;
  }
}

TEST(ProfileOnMeta, HasTimesOfTheNominalDevice) {
  const nn::Sequential model =
      on_meta([] { return nn::Sequential(nn::Linear(10, 20), nn::ReLU()); });
  NominalDevice device;
  device.flops_per_second = 100;
  device.bytes_per_second = 1000;
  device.seconds_per_operator = 0.5;
  const Profile profile = profile_on_meta(model, {at::empty({7, 10}, on_meta())}, device);
  EXPECT_EQ(profile.device, "nominal, from FLOPs");
  EXPECT_EQ(profile.batch_rows, 7);
  ASSERT_EQ(profile.layers.size(), 2);
  EXPECT_EQ(profile.layers[0].parameters, 4 * (10 * 20 + 20));
  EXPECT_EQ(profile.layers[0].output, 4 * 7 * 20);
  EXPECT_DOUBLE_EQ(profile.layers[1].forward, 140.0 / 100 + 2 * 4 * 140.0 / 1000 + 0.5);
  EXPECT_GT(profile.layers[0].backward, profile.layers[0].forward);
}

// To gather moments, an accelerator runs three operators: a copy in double, the variance with the
// mean, and a product.
TEST(ProfileOnMeta, CountsWhatDeferredBatchNormsGather) {
  const nn::Sequential model =
      on_meta([] { return nn::Sequential(nn::Linear(10, 20), nn::BatchNorm1d(20)); });
  NominalDevice device;
  device.flops_per_second = device.bytes_per_second = 1e30;
  device.seconds_per_operator = 1;
  const auto of = [&](bool deferred) {
    return profile_on_meta(model, {at::empty({7, 10}, on_meta())}, device, {}, deferred);
  };
  Profile plain = of(false);
  Profile deferred = of(true);
  EXPECT_TRUE(deferred.deferred_batch_norm);
  EXPECT_DOUBLE_EQ(deferred.layers[0].forward, plain.layers[0].forward);
  EXPECT_DOUBLE_EQ(deferred.layers[1].forward, plain.layers[1].forward + 3);
  EXPECT_DOUBLE_EQ(deferred.layers[1].backward, plain.layers[1].backward);
  device = NominalDevice{1e30, 1, 0};
  plain = of(false);
  deferred = of(true);
  const double copy = 7 * 20 * 8;
  const double channels = 20 * 8;
  EXPECT_NEAR(deferred.layers[1].forward - plain.layers[1].forward,
              copy / 2 + copy + copy + 2 * channels + 2 * channels, 1e-6);
}

TEST(ProfileOnMeta, RefusesOtherDevicesAndSpeeds) {
  const nn::Sequential on_cpu(nn::Linear(2, 2));
  EXPECT_THAT(
      [&] {
        profile_on_meta(on_cpu, {at::rand({1, 2})});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("but this one is on cpu; measure it there")));
  const nn::Sequential model = on_meta([] { return nn::Sequential(nn::Linear(2, 2)); });
  NominalDevice device;
  for (const double speed : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    device.flops_per_second = speed;
    EXPECT_THAT(
        [&] {
          profile_on_meta(model, {at::empty({1, 2}, on_meta())}, device);
        },
        ThrowsMessage<c10::ValueError>(HasSubstr("flops_per_second")));
  }
  EXPECT_THAT([&] { flops(model, {}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the sample has no tensors")));
}

}  // namespace
}  // namespace gpipe::balance
