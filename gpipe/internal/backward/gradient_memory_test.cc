#include "gpipe/internal/backward/gradient_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "gpipe/testing/bitwise.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::EqualsBitwise;

at::Tensor sparse() {
  return torch::sparse_coo_tensor(torch::tensor({{0, 2}}), torch::ones({2}), {4}).coalesce();
}

TEST(GradientMemory, IsSharedWithWhoeverElseHasIt) {
  at::Tensor whole = torch::randn({3, 2});
  EXPECT_FALSE(memory_is_shared(whole));
  const at::Tensor other = whole.view({6});
  EXPECT_TRUE(memory_is_shared(whole));
  EXPECT_TRUE(share_memory(whole, other));
  EXPECT_FALSE(share_memory(whole, whole.clone()));
}

TEST(GradientMemory, OfASparseOneIsThatOfItsValues) {
  const at::Tensor indices = torch::tensor({{0, 2}});
  at::Tensor travelling = torch::ones({1, 2});
  const at::Tensor gradient = at::_sparse_coo_tensor_unsafe(indices, travelling.reshape({2}), {4});
  EXPECT_TRUE(memory_is_shared(gradient))
      << "an earlier stage may write into the gradient that it receives";
  travelling = at::Tensor();
  EXPECT_FALSE(memory_is_shared(gradient)) << "nothing writes into the indices";
}

TEST(GradientMemory, OfAViewThatIsAllOfItAndAloneIsItsOwn) {
  // Each view is the only reference to its base. The memory counts as shared if the view is a part
  // of its base, repeats elements or is a lazy conjugate.
  const at::Tensor transposed = torch::randn({3, 2}).t();
  const at::Tensor part = torch::randn({3, 2}).narrow(0, 0, 2);
  const at::Tensor repeated = torch::randn({3, 1}).expand({3, 2});
  const at::Tensor lazy = torch::randn({3}, torch::kComplexFloat).conj();
  EXPECT_FALSE(memory_is_shared(transposed));
  EXPECT_TRUE(memory_is_shared(part));
  EXPECT_TRUE(memory_is_shared(repeated));
  EXPECT_TRUE(memory_is_shared(lazy));
}

TEST(GradientMemory, AReferenceToTheTensorCountsToo) {
  const at::Tensor gradient = torch::randn({2});
  EXPECT_FALSE(is_shared(gradient));
  const at::Tensor same = gradient;
  EXPECT_TRUE(is_shared(gradient));
  EXPECT_FALSE(memory_is_shared(gradient));
}

TEST(GradientMemory, GroupsBySharedMemory) {
  at::Tensor a = torch::randn({4});
  at::Tensor b = torch::randn({4});
  at::Tensor part_of_a = a.narrow(0, 1, 2);
  at::Tensor of_sparse = sparse();
  at::Tensor same_values = of_sparse;
  std::vector<std::vector<at::Tensor*>> groups;
  for_each_memory({&a, &of_sparse, &b, &part_of_a, &same_values},
                  [&](c10::ArrayRef<at::Tensor*> group) { groups.push_back(group.vec()); });
  EXPECT_THAT(groups, ElementsAre(ElementsAre(&a, &part_of_a),
                                  ElementsAre(&of_sparse, &same_values), ElementsAre(&b)));
}

TEST(GradientMemory, MovedAwayTogetherItIsStillShared) {
  at::Tensor whole = torch::arange(4.0);
  at::Tensor part = whole.narrow(0, 1, 2);
  const at::Tensor kept = whole.view({2, 2});
  std::vector<at::Tensor*> both = {&whole, &part};
  EXPECT_TRUE(shared_with_others(both));
  move_away(both);
  EXPECT_FALSE(shared_with_others(both));
  EXPECT_FALSE(share_memory(whole, kept));
  ASSERT_TRUE(share_memory(whole, part));
  part.zero_();
  EXPECT_THAT(whole, EqualsBitwise(torch::tensor({0.0F, 0.0F, 0.0F, 3.0F})));
  EXPECT_THAT(kept.view({4}), EqualsBitwise(torch::arange(4.0)));
}

TEST(GradientMemory, OfSparseGradientsIsThatOfTheirElementsAndPlaces) {
  at::Tensor gradient = sparse();
  std::vector<at::Tensor*> alone = {&gradient};
  EXPECT_FALSE(shared_with_others(alone)) << "no other tensor has this memory";
  const at::Tensor values = gradient._values();
  EXPECT_TRUE(shared_with_others(alone));
  EXPECT_TRUE(share_memory(gradient, values));
  move_away(alone);
  EXPECT_FALSE(shared_with_others(alone));
  EXPECT_FALSE(share_memory(gradient, values));
  {
    const at::Tensor indices = gradient._indices();
    EXPECT_TRUE(shared_with_others(alone));
  }
  EXPECT_FALSE(shared_with_others(alone));
  EXPECT_THAT(gradient.to_dense(), EqualsBitwise(torch::tensor({1.0F, 0.0F, 1.0F, 0.0F})));
}

TEST(GradientMemory, UnsharedItIsAnotherTensorOnlyIfOthersHaveIt) {
  at::Tensor gradient = torch::ones({3});
  const c10::StorageImpl* const before = gradient.storage().unsafeGetStorageImpl();
  unshare(gradient);
  EXPECT_EQ(gradient.storage().unsafeGetStorageImpl(), before);
  const at::Tensor view = gradient.view({3});
  unshare(gradient);
  EXPECT_FALSE(share_memory(gradient, view));
  EXPECT_THAT(gradient, EqualsBitwise(view));
}

}  // namespace
}  // namespace gpipe::internal
