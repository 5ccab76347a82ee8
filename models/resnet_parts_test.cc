#include "models/resnet_parts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::models::internal {
namespace {

using ::testing::ElementsAre;

TEST(ResNetPartsTest, RefusesWhatMakesNoNetwork) {
  EXPECT_NO_THROW(check_resnet({3, 4}, 10, 64));
  EXPECT_THROW(check_resnet({}, 10, 64), c10::ValueError);
  EXPECT_THROW(check_resnet({3, 0}, 10, 64), c10::ValueError);
  EXPECT_THROW(check_resnet({1025}, 10, 64), c10::ValueError);
  EXPECT_THROW(check_resnet(std::vector<int64_t>(17, 1), 10, 64), c10::ValueError);
  EXPECT_THROW(check_resnet({3}, 0, 64), c10::ValueError);
  EXPECT_THROW(check_resnet({3}, (int64_t{1} << 24) + 1, 64), c10::ValueError);
  EXPECT_THROW(check_resnet({3}, 10, 0), c10::ValueError);
  EXPECT_THROW(check_resnet({3}, 10, (int64_t{1} << 20) + 1), c10::ValueError);
}

TEST(ResNetPartsTest, EachGroupButTheFirstHalvesTheImage) {
  EXPECT_EQ(block_prefix(0, 2), "layer1_2_");
  EXPECT_EQ(block_stride(0, 0), 1);
  EXPECT_EQ(block_stride(1, 0), 2);
  EXPECT_EQ(block_stride(1, 1), 1);
}

TEST(ResNetPartsTest, PoolsAndScores) {
  torch::nn::Sequential model;
  push_max_pool(*model);
  push_tail(*model, 3, 5);
  EXPECT_THAT(model->forward(at::ones({2, 3, 8, 8})).sizes().vec(), ElementsAre(2, 5));
  std::vector<std::string> names;
  for (const auto& child : model->named_children()) names.push_back(child.key());
  EXPECT_THAT(names, ElementsAre("maxpool", "avgpool", "flat", "fc"));
}

}  // namespace
}  // namespace gpipe::models::internal
