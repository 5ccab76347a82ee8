#include "gpipe/internal/model/layer.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;

TEST(PartitionsOf, LayersStandInTheirPartitionsInTheModelsOrder) {
  nn::Linear first(2, 2);
  nn::Linear third(2, 2);
  nn::Sequential model(first, nn::Tanh());
  model->push_back("last", third);
  const std::vector<std::vector<Layer>> partitions = partitions_of(model, {1, 2});
  ASSERT_EQ(partitions.size(), 2u);
  ASSERT_EQ(partitions[0].size(), 1u);
  ASSERT_EQ(partitions[1].size(), 2u);
  EXPECT_EQ(partitions[0][0].module.ptr(), first.ptr()) << "the model's own";
  EXPECT_EQ(partitions[0][0].name, "0");
  EXPECT_EQ(partitions[0][0].index, 0);
  EXPECT_EQ(partitions[1][0].index, 1);
  EXPECT_EQ(partitions[1][1].module.ptr(), third.ptr());
  EXPECT_EQ(partitions[1][1].name, "last");
  EXPECT_EQ(partitions[1][1].index, 2);
}

TEST(LayerText, IsOneLineWhateverTheKey) {
  nn::Sequential model;
  model->push_back("a\nb", nn::Tanh());
  model->push_back(std::string(100, 'x'), nn::Tanh());
  const std::vector<Layer> layers = partitions_of(model, {2})[0];
  EXPECT_EQ(layer_text(layers[0]), "layer 0 ('a\\x0ab')");
  EXPECT_EQ(layer_text(layers[1]), "layer 1 ('" + std::string(100, 'x') + "')") << "in full";
}

}  // namespace
}  // namespace gpipe::internal
