#include "gpipe/flatten.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;

// {"in": Linear, "block": {"norm": {Linear, Tanh}, "out": Linear}, "empty": {}, "3": Tanh}
nn::Sequential nested() {
  nn::Sequential norm(nn::Linear(4, 4), nn::Tanh());
  nn::Sequential block, model;
  block->push_back("norm", norm);
  block->push_back("out", nn::Linear(4, 4));
  model->push_back("in", nn::Linear(4, 4));
  model->push_back("block", block);
  model->push_back("empty", nn::Sequential());
  model->push_back(nn::Tanh());
  return model;
}

TEST(Flatten, LayersKeepTheirOrderAndTheirNames) {
  const nn::Sequential model = nested();
  nn::Sequential flat = flatten(model);
  EXPECT_THAT(flat->named_children().keys(),
              ElementsAre("in", "block_norm_0", "block_norm_1", "block_out", "3"));
  const std::vector<at::Tensor> before = model->parameters(), after = flat->parameters();
  ASSERT_EQ(before.size(), after.size());
  for (size_t k = 0; k < before.size(); ++k) EXPECT_TRUE(before[k].is_same(after[k]));
}

TEST(Flatten, APipelineOfItIsTheModel) {
  testing::manual_seed(1);
  nn::Sequential model = nested();
  GPipe pipe(flatten(model), testing::cpu_options({2, 1, 2}).chunks(1));
  const at::Tensor x = torch::randn({4, 4});
  EXPECT_THAT(pipe->forward(x), EqualsBitwise(model->forward(x)));
}

TEST(Flatten, AFlatOneStaysAsItIs) {
  nn::Sequential model(nn::Linear(4, 4), nn::Dropout(0.5));
  model->eval();
  const nn::Sequential flat = flatten(model);
  EXPECT_THAT(flat->named_children().keys(), ElementsAre("0", "1"));
  EXPECT_FALSE(flat->is_training());
  EXPECT_FALSE(flat->ptr(1)->is_training());
}

// Its own forward may do anything.
struct ResidualImpl : nn::SequentialImpl {
  using nn::SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return x + nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Residual);

TEST(Flatten, ADerivedClassIsALayer) {
  nn::Sequential model(Residual(nn::Linear(4, 4), nn::Tanh()), nn::Tanh());
  EXPECT_THAT(flatten(model)->named_children().keys(), ElementsAre("0", "1"));
}

TEST(Flatten, TwoLayersOfOneNameAreRefused) {
  nn::Sequential inner, model;
  inner->push_back("b", nn::Tanh());
  model->push_back("a", inner);
  model->push_back("a_b", nn::Tanh());
  EXPECT_THAT([&] { flatten(model); },
              ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("'a.b' and 'a_b'")));
  EXPECT_THROW(flatten(nn::Sequential(nullptr)), c10::ValueError);
}

}  // namespace
}  // namespace gpipe
