#include "models/resnet.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "meta/meta_scope.h"
#include "models/testing/checks.h"
#include "models/testing/golden.h"

namespace gpipe::models {
namespace {

using testing::Counts;
using testing::expect_golden;
using testing::expect_golden_micro_batched;
using ::testing::HasSubstr;
using testing::skip_partitions;

torch::nn::Sequential on_meta(const ResNetOptions& options) {
  MetaScope meta;
  return resnet(options);
}

struct CountCase {
  std::vector<int64_t> layers;
  int64_t num_classes;
  Counts counts;
};

const CountCase kCounts[] = {
    {{3, 4, 23, 3}, 1000, {44549160, 314, 312, 105448, 370, 66}},
    {{3, 4, 6, 3}, 1000, {25557032, 161, 159, 53173, 183, 32}},
    {{3, 8, 36, 3}, 1000, {60192808, 467, 465, 151579, 557, 100}},
    {{1, 1, 1, 1}, 10, {8036426, 53, 51, 19345, 51, 8}},
    {{1, 1, 1, 1}, 1000, {10064936, 53, 51, 19345, 51, 8}},
    {{2, 2, 2, 2}, 10, {13966666, 89, 87, 30877, 95, 16}},
    {{1, 2, 3, 1}, 7, {10544711, 80, 78, 27034, 84, 14}},
    {{3, 4, 23, 3}, 10, {42520650, 314, 312, 105448, 370, 66}},
    {{3, 4, 6, 3}, 10, {23528522, 161, 159, 53173, 183, 32}},
};

TEST(ResNetTest, HasExactlyTheKnownSizes) {
  for (const auto& [layers, num_classes, counts] : kCounts) {
    SCOPED_TRACE(::testing::PrintToString(layers));
    EXPECT_EQ(testing::count(on_meta(ResNetOptions(layers).num_classes(num_classes))), counts);
  }
}

TEST(ResNetTest, TheNamedOnesAreWhatTheirNamesSay) {
  MetaScope meta;
  EXPECT_EQ(testing::count(resnet50()).parameters, 25557032);
  EXPECT_EQ(testing::count(resnet101()).parameters, 44549160);
  EXPECT_EQ(testing::count(resnet152()).parameters, 60192808);
}

TEST(ResNetTest, GivesTheGoldenNumbers) {
  expect_golden("resnet_1111_nc10_64x64", [] {
    return resnet(ResNetOptions({1, 1, 1, 1}).num_classes(10));
  });
}

TEST(ResNetTest, GivesTheGoldenNumbersInPlaceToo) {
  expect_golden("resnet_1111_nc10_64x64", [] {
    return resnet(ResNetOptions({1, 1, 1, 1}).num_classes(10).inplace(true));
  });
}

TEST(ResNetTest, GivesTheGoldenNumbersInMicroBatches) {
  expect_golden_micro_batched("resnet_1111_nc10_64x64", [] {
    return resnet(ResNetOptions({1, 1, 1, 1}).num_classes(10));
  });
}

TEST(ResNetTest, SkipsGoBetweenThePartitionsOfThePublishedBalances) {
  const auto model = on_meta(ResNetOptions({3, 4, 23, 3}));
  auto crossing = [&model](const std::vector<int64_t>& balance) {
    std::istringstream all(skip_partitions(model, balance));
    std::string text;
    for (std::string route; all >> route;) {
      if (route.front() != route.back()) text += route + " ";
    }
    return text;
  };
  EXPECT_EQ(crossing({135, 235}), "");
  EXPECT_EQ(crossing({44, 92, 124, 110}), "2>3 0>1 ");
  EXPECT_EQ(crossing({26, 22, 33, 44, 44, 66, 66, 69}), "");
  EXPECT_EQ(crossing({140, 230}), "0>1 ");
}

TEST(ResNetTest, ConvolutionsAreInitializedForReLU) {
  const auto parameters = resnet(ResNetOptions({1, 1}))->named_parameters();
  // The fan-out of a 3x3 convolution to 128 channels is 128 * 9. The standard deviation of 147,456
  // draws is typically off by 0.2 %, so 2 % are allowed.
  const double expected = std::sqrt(2.0 / (128 * 9));
  EXPECT_NEAR(parameters["layer2_0_conv2.weight"].std().item<double>(), expected, 0.02 * expected);
  const double shortcut = std::sqrt(2.0 / 512);
  EXPECT_NEAR(parameters["layer2_0_residual.downsample.0.weight"].std().item<double>(), shortcut,
              0.02 * shortcut);
  EXPECT_EQ(parameters["layer2_0_bn3.weight"].min().item<double>(), 1);
  EXPECT_EQ(parameters["layer2_0_bn3.bias"].abs().max().item<double>(), 0);
}

TEST(ResNetTest, ShrinksToSmallImages) {
  auto model =
      resnet(ResNetOptions({1, 2}).num_classes(10).base_planes(8).in_channels(1).small_stem(true));
  EXPECT_EQ(model->size(), 3u + 11 * 3 + 3);
  EXPECT_EQ(model->forward(at::rand({2, 1, 28, 28})).sizes(), (at::IntArrayRef{2, 10}));
  // With small_stem no layer before the second group makes the image smaller.
  at::Tensor activation = model->ptr(0)->as<torch::nn::Conv2d>()->forward(at::rand({1, 1, 28, 28}));
  EXPECT_EQ(activation.sizes(), (at::IntArrayRef{1, 8, 28, 28}));
}

TEST(ResNetTest, CanBeCloned) {
  testing::expect_clone_works(resnet(ResNetOptions({1, 2}).base_planes(4)),
                              at::rand({1, 3, 32, 32}));
}

TEST(ResNetTest, ShowsItsSkips) {
  std::ostringstream text;
  text << *resnet(ResNetOptions({1}).base_planes(2));
  EXPECT_THAT(text.str(), HasSubstr("Identity, Skippable(stash: 'identity')"));
  EXPECT_THAT(text.str(), HasSubstr("Residual, Skippable(pop: 'identity')"));
}

}  // namespace
}  // namespace gpipe::models
