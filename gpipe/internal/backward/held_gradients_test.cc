#include "gpipe/internal/backward/held_gradients.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <utility>

#include "gpipe/internal/backward/gradient_memory.h"
#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using testing::EqualsBitwise;

struct HeldGradientsTest : ::testing::Test {
  HeldGradientsTest() { check_held_gradients(true); }
  ~HeldGradientsTest() override { check_held_gradients(false); }

  void hold(torch::autograd::variable_list gradients) {
    held.entries.push_back({NodeOrder(), nullptr, {}, std::move(gradients)});
  }
  const at::Tensor& gradient(size_t entry, size_t k) { return held.entries[entry].gradients[k]; }

  HeldGradients held;
};

TEST_F(HeldGradientsTest, HaveMemoryThatNobodyElseHas) {
  const at::Tensor kept = torch::ones({2});
  hold({kept.view({2}), at::Tensor()});
  hold({torch::ones({2})});
  const c10::StorageImpl* const own = gradient(1, 0).storage().unsafeGetStorageImpl();
  held.take_possession();
  kept.zero_();
  EXPECT_THAT(gradient(0, 0), EqualsBitwise(torch::ones({2})));
  EXPECT_EQ(gradient(1, 0).storage().unsafeGetStorageImpl(), own)
      << "no other tensor had this memory";
  held.check();
}

TEST_F(HeldGradientsTest, WhatSharedMemoryStillDoes) {
  const at::Tensor kept = torch::ones({2});
  hold({kept.view({2})});
  hold({kept.view({1, 2})});
  held.take_possession();
  EXPECT_FALSE(share_memory(gradient(0, 0), kept));
  EXPECT_TRUE(share_memory(gradient(0, 0), gradient(1, 0)));
}

at::Tensor sparse(const at::Tensor& places) {
  return torch::sparse_coo_tensor(places.view({1, -1}), torch::ones({2}), {4});
}

TEST_F(HeldGradientsTest, SparseOnesMoveOnlyIfOthersHaveAPart) {
  const at::Tensor places = torch::tensor({0, 2});
  hold({sparse(places.clone())});
  hold({sparse(places)});
  const void* const own = gradient(0, 0)._values().const_data_ptr();
  held.take_possession();
  EXPECT_EQ(gradient(0, 0)._values().const_data_ptr(), own) << "no other tensor had this memory";
  places.zero_();
  EXPECT_THAT(gradient(1, 0).to_dense(), EqualsBitwise(torch::tensor({1.0F, 0.0F, 1.0F, 0.0F})));
  held.check();

  held = HeldGradients();
  hold({sparse(places.clone())});
  held.take_possession();
  const at::Tensor values = gradient(0, 0)._values();
  EXPECT_THROW(held.check(), c10::Error);
}

TEST_F(HeldGradientsTest, ChangedOrSharedMeanwhileAreFound) {
  hold({torch::ones({2})});
  held.take_possession();
  gradient(0, 0).zero_();
  EXPECT_THROW(held.check(), c10::Error);

  held = HeldGradients();
  hold({torch::ones({2})});
  held.take_possession();
  const at::Tensor view = gradient(0, 0).view({2});
  EXPECT_THROW(held.check(), c10::Error);
}

TEST_F(HeldGradientsTest, AreNotLookedAtUnlessThatIsAskedFor) {
  check_held_gradients(false);
  hold({torch::ones({2})});
  held.take_possession();
  gradient(0, 0).zero_();
  EXPECT_NO_THROW(held.check());
}

}  // namespace
}  // namespace gpipe::internal
