#include "balance/testing/small_networks.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>

namespace gpipe::testing {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(SmallNetworks, TakeTheirShape) {
  for (const SmallNetwork& network : small_networks()) {
    EXPECT_EQ(random_input(network).sizes(), network.shape) << network.name;
    EXPECT_TRUE(network.make()->forward(random_input(network)).defined()) << network.name;
  }
}

TEST(SmallTransformer, TakesTokensOfItsVocabulary) {
  const SmallNetwork network = small_transformer();
  const at::Tensor ids = random_input(network, 3);
  EXPECT_EQ(ids.sizes(), (at::IntArrayRef{6, 128}));
  EXPECT_EQ(ids.scalar_type(), at::kLong);
  EXPECT_LT(ids.max().item<int64_t>(), network.words);
  EXPECT_EQ(network.make()->forward(random_input(network)).sizes(),
            (at::IntArrayRef{2, 128, network.words}));
}

TEST(SleepingNetwork, SleepsInBothDirectionsAndPassesGradients) {
  const SmallNetwork network = sleeping_network(3);
  torch::nn::Sequential layers = network.make();
  ASSERT_EQ(layers->size(), 3);
  const at::Tensor input = at::ones(network.shape).requires_grad_();
  auto start = std::chrono::steady_clock::now();
  const at::Tensor output = layers->forward(input);
  EXPECT_GE(seconds_since(start), 3 * 0.005);
  start = std::chrono::steady_clock::now();
  output.sum().backward();
  EXPECT_GE(seconds_since(start), 3 * 0.010);
  EXPECT_TRUE(input.grad().equal(at::ones(network.shape)));
  EXPECT_EQ(layers->parameters()[0].grad().item<float>(), 2);
}

}  // namespace
}  // namespace gpipe::testing
