#include "gpipe/extend.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

nn::Sequential a_block() {
  nn::Sequential block(nn::Linear(4, 4), nn::ReLU());
  block->push_back("last", nn::Linear(4, 4));
  return block;
}

TEST(Extend, KeepsNamesAndTheModulesThemselves) {
  nn::Sequential model{nn::Linear(4, 4)};
  const nn::Sequential block = a_block();
  extend(model, "encoder", block);
  extend(model, "decoder", a_block());
  EXPECT_THAT(model->named_parameters().keys(),
              ElementsAre("0.weight", "0.bias", "encoder_0.weight", "encoder_0.bias",
                          "encoder_last.weight", "encoder_last.bias", "decoder_0.weight",
                          "decoder_0.bias", "decoder_last.weight", "decoder_last.bias"));
  EXPECT_TRUE(model->named_parameters()["encoder_0.weight"].is_same(block->parameters()[0]));
  EXPECT_EQ(model->size(), 7u);
}

TEST(Extend, GivesAModelThatIsCutAnywhere) {
  nn::Sequential model;
  for (const char* name : {"encoder", "decoder"}) extend(model, name, a_block());
  model->push_back("sum", nn::Functional([](torch::Tensor x) { return x.sum(1, true); }));
  const torch::Tensor x = torch::ones({2, 4});
  const torch::Tensor expected = model->forward(x);
  GPipe pipe(model, GPipeOptions({2, 3, 2}).chunks(2));
  EXPECT_TRUE(torch::equal(pipe(x), expected));
}

TEST(Extend, AppendsNothingWhereANameCannotBe) {
  nn::Sequential model;
  model->push_back("encoder_last", nn::ReLU());
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "is empty or has a dot"},
      {"a.b", "'a.b' is empty or has a dot"},
      {"encoder", "has a layer 'encoder_last'"}};
  for (const auto& mistake : wrong) {
    EXPECT_THAT(([&] { extend(model, mistake.first, a_block()); }),
                ThrowsMessage<c10::ValueError>(HasSubstr(mistake.second)));
  }
  EXPECT_THAT([&] { extend(model, "again", model); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the model itself")));
  EXPECT_EQ(model->size(), 1u);
}

// If a layer without a name were allowed, the other names would be paired with the wrong layers.
TEST(Extend, RefusesABlockWithALayerWithoutAName) {
  nn::Sequential model;
  nn::Sequential block = a_block();
  EXPECT_ANY_THROW(block->push_back("last", nn::Tanh()));
  block->push_back("head", nn::Linear(4, 4));
  EXPECT_THAT([&] { extend(model, "encoder", block); },
              ThrowsMessage<c10::ValueError>(HasSubstr("layer 3 of the model")));
  EXPECT_EQ(model->size(), 0u);
}

TEST(Extend, ByAnEmptyBlockIsNothing) {
  nn::Sequential model{nn::ReLU()};
  extend(model, "none", nn::Sequential());
  EXPECT_EQ(model->size(), 1u);
}

}  // namespace
}  // namespace gpipe
