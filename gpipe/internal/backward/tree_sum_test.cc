#include "gpipe/internal/backward/tree_sum.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe::internal {
namespace {

using testing::bitwise_difference;

// The sum of the groups [first, first + 2^level), computed as the definition says.
at::Tensor defined_sum(const std::vector<at::Tensor>& groups, int64_t first, int level) {
  if (first >= static_cast<int64_t>(groups.size())) return {};
  if (level == 0) return groups[static_cast<size_t>(first)];
  const at::Tensor left = defined_sum(groups, first, level - 1);
  const at::Tensor right = defined_sum(groups, first + (int64_t{1} << (level - 1)), level - 1);
  if (!left.defined() || !right.defined()) return left.defined() ? left : right;
  return at::add(left, right);
}

// Groups of very different magnitude, so that another order gives other bits.
std::vector<at::Tensor> random_groups(int64_t count) {
  std::vector<at::Tensor> groups;
  for (int64_t k = 0; k < count; ++k) {
    groups.push_back(at::rand({64}).sub(0.5).mul(k % 3 == 0 ? 1e4 : 1));
  }
  return groups;
}

at::Tensor tree_sum(const std::vector<at::Tensor>& groups) {
  TreeSum tree;
  for (size_t k = 0; k < groups.size(); ++k) {
    tree.add(static_cast<int64_t>(k), groups[k].defined() ? groups[k].clone() : at::Tensor());
  }
  return tree.take();
}

TEST(TreeSum, IsTheTreeOfItsDefinition) {
  testing::manual_seed(1);
  int64_t other_bits = 0;
  for (int64_t count = 1; count <= 20; ++count) {
    const std::vector<at::Tensor> groups = random_groups(count);
    const at::Tensor expected = defined_sum(groups, 0, 5);
    EXPECT_EQ(bitwise_difference(expected, tree_sum(groups)), "") << count;
    at::Tensor fold = groups[0];
    for (size_t k = 1; k < groups.size(); ++k) fold = at::add(fold, groups[k]);
    other_bits += bitwise_difference(expected, fold).empty() ? 0 : 1;
  }
  EXPECT_GE(other_bits, 15);  // otherwise the test would not notice the order
}

TEST(TreeSum, LeavesOutWhatIsUndefined) {
  testing::manual_seed(2);
  for (int64_t absent = 0; absent < 1 << 7; ++absent) {
    std::vector<at::Tensor> groups = random_groups(7);
    for (int64_t k = 0; k < 7; ++k) {
      if ((absent >> k & 1) != 0) groups[static_cast<size_t>(k)] = at::Tensor();
    }
    const at::Tensor expected = defined_sum(groups, 0, 3);
    const at::Tensor sum = tree_sum(groups);
    ASSERT_EQ(sum.defined(), expected.defined()) << absent;
    if (!sum.defined()) continue;
    EXPECT_EQ(bitwise_difference(expected, sum), "") << absent;
  }
}

// Replicas do this: each adds up a part, and then the sums of the parts are added up.
TEST(TreeSum, PartsGiveTheBitsOfTheWhole) {
  testing::manual_seed(3);
  for (const int64_t each : {1, 2, 4, 8}) {
    for (const int64_t replicas : {1, 2, 3, 4, 5}) {
      const std::vector<at::Tensor> groups = random_groups(each * replicas);
      TreeSum whole;
      for (int64_t replica = 0; replica < replicas; ++replica) {
        TreeSum part;
        for (int64_t k = replica * each; k < (replica + 1) * each; ++k) {
          part.add(k, groups[static_cast<size_t>(k)].clone());
        }
        whole.add(replica * each, part.take());
      }
      EXPECT_EQ(bitwise_difference(tree_sum(groups), whole.take()), "") << each << " " << replicas;
    }
  }
}

TEST(TreeSum, ChangesNothingThatOthersHave) {
  const at::Tensor given = at::full({4}, 1.0F);
  TreeSum tree;
  tree.add(0, given);
  tree.add(1, at::full({4}, 2.0F));
  EXPECT_EQ(tree.take()[0].item<float>(), 3);
  EXPECT_EQ(given[0].item<float>(), 1);
}

TEST(TreeSum, AddsSparseAndDense) {
  const at::Tensor dense = at::full({4}, 1.0F);
  for (const bool sparse_first : {true, false}) {
    TreeSum tree;
    tree.add(0, sparse_first ? dense.to_sparse() : dense.clone());
    tree.add(1, sparse_first ? dense.clone() : dense.to_sparse());
    EXPECT_EQ(tree.take()[3].item<float>(), 2);
  }
}

}  // namespace
}  // namespace gpipe::internal
