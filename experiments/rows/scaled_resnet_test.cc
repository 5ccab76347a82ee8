#include "experiments/rows/scaled_resnet.h"

#include <gtest/gtest.h>

#include "models/resnet.h"

namespace gpipe::experiments {
namespace {

TEST(ScaledResNet, CountsTheLayersThatTheModelHas) {
  for (const Scale scale : {Scale::kSmoke, Scale::kSmall}) {
    const ScaledResNet resnet = scaled_resnet(scale);
    const auto model =
        models::resnet(models::ResNetOptions(resnet.blocks).base_planes(resnet.base_planes));
    EXPECT_EQ(resnet.layers(), static_cast<int64_t>(model->size()));
  }
  EXPECT_EQ(scaled_resnet(Scale::kFull).layers(), 370) << "as published";
}

TEST(ScaledResNet, HasAName) {
  EXPECT_EQ(scaled_resnet(Scale::kFull).name(), "ResNet-101");
  EXPECT_EQ(scaled_resnet(Scale::kSmoke).name(), "ResNet [1, 1, 1, 1] of 8 planes");
}

}  // namespace
}  // namespace gpipe::experiments
