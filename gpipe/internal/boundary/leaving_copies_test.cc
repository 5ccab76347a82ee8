#include "gpipe/internal/boundary/leaving_copies.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using Tensors = std::vector<at::Tensor>;
using testing::EqualsBitwise;

std::vector<const at::Tensor*> pointers(const Tensors& tensors) {
  std::vector<const at::Tensor*> result;
  for (const at::Tensor& tensor : tensors) result.push_back(&tensor);
  return result;
}

bool is_copied(const Tensors& leaving, size_t which) {
  const LeavingCopies copies(/*record=*/true, ModelState(), pointers(leaving), {});
  return copies.of(leaving[which]).defined();
}

TEST(LeavingCopiesTest, WhatNobodyElseHoldsLeavesAsItIs) {
  Tensors alone(1);  // an initializer list would also hold a reference
  alone[0] = at::ones({4});
  EXPECT_FALSE(is_copied(alone, 0));
  alone[0] = at::ones({4}).view({2, 2});
  EXPECT_FALSE(is_copied(alone, 0)) << "nobody has the base";
}

TEST(LeavingCopiesTest, WhatALayerKeepsLeavesAsACopy) {
  const at::Tensor kept = at::arange(4.0);
  EXPECT_TRUE(is_copied({kept}, 0));
  EXPECT_TRUE(is_copied({kept.view({2, 2})}, 0));
  EXPECT_TRUE(is_copied({at::ones({4}), kept}, 1));
  const at::Tensor leaving = kept;
  const LeavingCopies copies(true, ModelState(), {&leaving}, {});
  const at::Tensor copy = copies.of(kept);
  EXPECT_THAT(copy, EqualsBitwise(kept));
  EXPECT_FALSE(copy.is_alias_of(kept));
}

TEST(LeavingCopiesTest, ValuesOverOneMemoryShareACopy) {
  const at::Tensor kept = at::arange(6.0);
  const at::Tensor a = kept.narrow(0, 0, 4);
  const at::Tensor b = kept.narrow(0, 2, 4);
  const LeavingCopies copies(true, ModelState(), {&a, &b}, {});
  const at::Tensor of_a = copies.of(a);
  const at::Tensor of_b = copies.of(b);
  EXPECT_TRUE(of_a.is_alias_of(of_b));
  EXPECT_FALSE(of_a.is_alias_of(kept));
  EXPECT_THAT(of_a, EqualsBitwise(a));
  EXPECT_THAT(of_b, EqualsBitwise(b));
}

TEST(LeavingCopiesTest, WhatWantsAGradientOrMustStayTheirsDoesNot) {
  const at::Tensor leaf = at::ones({4}).requires_grad_();
  const at::Tensor computed = leaf * 2;
  EXPECT_FALSE(is_copied({computed}, 0)) << "its graph tells of changes";
  const at::Tensor again = computed;
  EXPECT_TRUE(LeavingCopies(/*record=*/false, ModelState(), {&again}, {}).of(again).defined())
      << "but not where there will be no backward";
  const at::Tensor kept = at::ones({4});
  const at::Tensor leaving = kept;
  const LeavingCopies shared(true, ModelState(), {&leaving}, {kept.storage().getWeakStorageImpl()});
  EXPECT_FALSE(shared.of(kept).defined());
}

TEST(WeakStoragesTest, AFreedMemorysAddressIsNobodys) {
  at::Tensor tensor = at::ones({4});
  const c10::StorageImpl* storage = storage_of(tensor);
  const WeakStorages storages = {tensor.storage().getWeakStorageImpl()};
  EXPECT_TRUE(contains(storages, storage));
  EXPECT_FALSE(contains(storages, storage_of(at::ones({4}))));
  tensor = at::Tensor();
  EXPECT_FALSE(contains(storages, storage));
}

}  // namespace
}  // namespace gpipe::internal
