#include "experiments/rivals/fill.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::experiments {
namespace {

using ::testing::ElementsAre;

TEST(FillTest, MakesWhatEachNetworkTakes) {
  const auto unet = models::model_by_name("unet:1,2", 64);
  const at::Tensor image = filled_input(unet, 2);
  EXPECT_THAT(image.sizes().vec(), ElementsAre(2, 3, 64, 64));
  EXPECT_GE(image.min().item<float>(), 0);
  EXPECT_GT(image.max().item<float>(), 0.99);
  EXPECT_LE(image.max().item<float>(), 1);
  EXPECT_THAT(filled_target(unet, 2).sizes().vec(), ElementsAre(2, 1, 64, 64));
  const at::Tensor labels = filled_target(models::model_by_name("resnet:1,1"), 3);
  EXPECT_EQ(labels.scalar_type(), at::kLong);
  EXPECT_EQ(labels[2].item<int64_t>(), 14);
}

}  // namespace
}  // namespace gpipe::experiments
