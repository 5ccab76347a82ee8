#include "models/old_resnet.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "meta/meta_scope.h"
#include "models/testing/checks.h"
#include "models/testing/golden.h"
#include "models/testing/pipelines.h"

namespace gpipe::models {
namespace {

using testing::Counts;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::expect_golden;
using ::testing::HasSubstr;
using testing::tensors_after;

torch::nn::Sequential on_meta(const OldResNetOptions& options) {
  MetaScope meta;
  return old_resnet(options);
}

torch::nn::Sequential small() {
  return old_resnet(OldResNetOptions({1, 2}).num_classes(5).base_planes(4));
}

struct CountCase {
  std::vector<int64_t> layers;
  int64_t num_classes;
  Counts counts;
};

const CountCase kCounts[] = {
    {{3, 4, 23, 3}, 10, {42520650, 314, 312, 105448, 304, 0}},
    {{3, 4, 23, 3}, 1000, {44549160, 314, 312, 105448, 304, 0}},
    {{1, 1, 1, 1}, 10, {8036426, 53, 51, 19345, 43, 0}},
    {{2, 2, 2, 2}, 10, {13966666, 89, 87, 30877, 79, 0}},
    {{1, 2, 3, 1}, 7, {10544711, 80, 78, 27034, 70, 0}},
    {{3, 4, 6, 3}, 10, {23528522, 161, 159, 53173, 151, 0}},
};

TEST(OldResNetTest, HasExactlyTheKnownSizes) {
  for (const auto& [layers, num_classes, counts] : kCounts) {
    SCOPED_TRACE(::testing::PrintToString(layers));
    EXPECT_EQ(testing::count(on_meta(OldResNetOptions(layers).num_classes(num_classes))), counts);
  }
}

TEST(OldResNetTest, GivesTheGoldenNumbers) {
  expect_golden("old_resnet_1111_nc10_64x64", [] {
    return old_resnet(OldResNetOptions({1, 1, 1, 1}).num_classes(10));
  });
}

TEST(OldResNetTest, TwoTensorsGoThroughABlock) {
  const std::vector<size_t> tensors = tensors_after(small(), at::rand({1, 3, 32, 32}));
  const std::vector<size_t> stem(tensors.begin(), tensors.begin() + 4);
  EXPECT_THAT(stem, Each(1));
  for (const int block : {0, 1, 2}) {
    const auto begin = tensors.begin() + 4 + 9 * block;
    EXPECT_THAT(std::vector<size_t>(begin, begin + 9), ElementsAre(2, 2, 2, 2, 2, 2, 2, 1, 1));
  }
}

TEST(OldResNetTest, TensorsAtTheCutsOfThePublishedBalances) {
  const std::vector<size_t> tensors = tensors_after(
      old_resnet(OldResNetOptions({3, 4, 23, 3}).base_planes(1)), at::rand({1, 3, 32, 32}));
  const auto tensors_at_cuts = [&tensors](const std::vector<size_t>& cuts) {
    std::vector<size_t> counts;
    for (size_t cut : cuts) counts.push_back(tensors[cut - 1]);
    return counts;
  };
  EXPECT_THAT(tensors_at_cuts({115}), ElementsAre(2));
  EXPECT_THAT(tensors_at_cuts({39, 117, 214}), ElementsAre(1, 2, 2));
  EXPECT_THAT(tensors_at_cuts({22, 40, 67, 103, 139, 193, 247}), Each(1));
}

TEST(OldResNetTest, APipelineEqualsThePlainModel) {
  // Some cuts are right behind a twin, whose two tensors share their memory, others before a
  // residual layer.
  for (const std::vector<int64_t>& balance :
       std::vector<std::vector<int64_t>>{{34}, {5, 29}, {11, 4, 19}, {2, 3, 5, 13, 1, 10}}) {
    testing::expect_pipeline_equals_plain_model(small, balance, {4, 3, 32, 32});
  }
}

TEST(OldResNetTest, ConvolutionsAreInitializedWiderThanUsual) {
  const auto parameters = old_resnet(OldResNetOptions({1, 1}))->named_parameters();
  // The standard deviation of 147,456 draws is typically off by 0.2 %, so 2 % are allowed.
  const double expected = 2 / std::sqrt(128.0 * 9);
  EXPECT_NEAR(parameters["layer2_0_conv2.module.weight"].std().item<double>(), expected,
              0.02 * expected);
  const double shortcut = 2 / std::sqrt(512.0);
  EXPECT_NEAR(parameters["layer2_0_residual.downsample.0.weight"].std().item<double>(), shortcut,
              0.02 * shortcut);
  EXPECT_EQ(parameters["layer2_0_bn3.module.weight"].min().item<double>(), 1);
  EXPECT_EQ(parameters["layer2_0_bn3.module.bias"].abs().max().item<double>(), 0);
}

TEST(OldResNetTest, CanBeCloned) { testing::expect_clone_works(small(), at::rand({1, 3, 32, 32})); }

TEST(OldResNetTest, ShowsItsLayers) {
  std::ostringstream text;
  text << *small();
  EXPECT_THAT(text.str(), HasSubstr("(layer2_0_twin): Twin"));
  EXPECT_THAT(text.str(), HasSubstr("(layer2_0_conv2): OnFirst"));
}

}  // namespace
}  // namespace gpipe::models
