#include "experiments/rivals/fill.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

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

TEST(FillTest, MakesTokensForALanguageModel) {
  const auto model = models::model_by_name("gpt2:1,8,2,16,100");
  const at::Tensor ids = filled_input(model, 50);
  EXPECT_EQ(ids.scalar_type(), at::kLong);
  EXPECT_THAT(ids.sizes().vec(), ElementsAre(50, 16));
  EXPECT_EQ(ids.min().item<int64_t>(), 0);
  EXPECT_EQ(ids.max().item<int64_t>(), 99);
  const at::Tensor targets = filled_target(model, 50);
  EXPECT_THAT(targets.sizes().vec(), ElementsAre(50, 16));
  EXPECT_LT(targets.max().item<int64_t>(), 100);
  EXPECT_FALSE(targets.equal(ids));
  // The ids must be those of sides/common.py: filled_input(network("gpt2:1,8,2,16,100", 0), 1)
  // begins with them.
  EXPECT_THAT(
      std::vector<int64_t>(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + 4),
      ElementsAre(12, 44, 91, 69));
}

}  // namespace
}  // namespace gpipe::experiments
