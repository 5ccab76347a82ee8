#include "gpipe/internal/tensors/twins.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "gpipe/internal/tensors/alias.h"

namespace gpipe::internal {
namespace {

TEST(TwinsTest, AreOneObjectAndNotOneMemory) {
  const at::Tensor tensor = at::ones({2});
  const at::Tensor again = tensor;
  EXPECT_TRUE(are_twins(tensor, again));
  EXPECT_FALSE(are_twins(tensor, detached_alias(tensor)));
  EXPECT_FALSE(are_twins(tensor, tensor.view({2})));
  EXPECT_FALSE(are_twins(at::Tensor(), at::Tensor()));
}

TEST(TwinsTest, FindWhatStandsForTheFirst) {
  const at::Tensor tensor = at::ones({2});
  const at::Tensor other = at::ones({2});
  const at::Tensor again = tensor;
  Twins<int> twins;
  EXPECT_EQ(twins.find(tensor), nullptr);
  twins.add(tensor, 5);
  twins.add(other, 6);
  ASSERT_NE(twins.find(again), nullptr);
  EXPECT_EQ(*twins.find(again), 5);
  EXPECT_EQ(*twins.find(other), 6);
  EXPECT_EQ(twins.find(detached_alias(tensor)), nullptr);
}

TEST(TwinsTest, AnUndefinedTensorHasNone) {
  Twins<int> twins;
  twins.add(at::Tensor(), 5);
  EXPECT_EQ(twins.find(at::Tensor()), nullptr);
}

}  // namespace
}  // namespace gpipe::internal
