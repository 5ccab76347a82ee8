#include "gpipe/internal/tensors/alias.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace gpipe::internal {
namespace {

TEST(DetachedAlias, SharesStorageAndVersionsButNoGraph) {
  at::Tensor x = at::zeros({2, 3}).requires_grad_();
  const at::Tensor y = x.exp();
  const at::Tensor alias = detached_alias(y);
  EXPECT_EQ(alias.data_ptr(), y.data_ptr());
  EXPECT_FALSE(alias.requires_grad());
  EXPECT_FALSE(alias.is_view());
  const int64_t before = version_of(y);
  alias.add_(1);
  EXPECT_EQ(version_of(y), before + 1);
  EXPECT_FALSE(detached_alias(at::Tensor()).defined());
}

TEST(DetachedAlias, OfAnInferenceTensorHasNoVersions) {
  c10::InferenceMode inference;
  at::Tensor x = at::zeros({2});
  const at::Tensor alias = detached_alias(x);
  x.add_(1);
  EXPECT_EQ(version_of(alias), 0);
}

TEST(AreSameView, IsAboutMemoryAndNotAboutObjects) {
  const at::Tensor x = at::arange(6).view({2, 3});
  EXPECT_TRUE(are_same_view(x, x));
  EXPECT_TRUE(are_same_view(x, x.detach()));
  EXPECT_TRUE(are_same_view(x.narrow(0, 1, 1), x.narrow(0, 1, 1)));
  EXPECT_TRUE(are_same_view(at::Tensor(), at::Tensor()));
  EXPECT_FALSE(are_same_view(x, at::Tensor()));
  EXPECT_FALSE(are_same_view(x, x.clone()));
  EXPECT_FALSE(are_same_view(x.narrow(0, 0, 1), x.narrow(0, 1, 1)));
  EXPECT_FALSE(are_same_view(x, x.view({3, 2})));
  const at::Tensor square = at::zeros({2, 2});
  EXPECT_FALSE(are_same_view(square, square.t()));
  EXPECT_FALSE(are_same_view(square, square.view(at::kInt)));
}

TEST(HeldByOthers, CountsReferencesToTensorsAndMemory) {
  at::Tensor a = at::zeros({4});
  EXPECT_FALSE(held_by_others({&a}));
  at::Tensor part = a.narrow(0, 1, 2);
  EXPECT_TRUE(held_by_others({&part}));
  EXPECT_TRUE(held_by_others({&a}));
  EXPECT_FALSE(held_by_others({&a, &part}));
  at::Tensor again = part;
  EXPECT_TRUE(held_by_others({&a, &part}));
  EXPECT_FALSE(held_by_others({&a, &part, &again}));
  again = a.narrow(0, 1, 2);
  EXPECT_TRUE(held_by_others({&a, &part}));
  again = at::Tensor();
  a = at::Tensor();
  EXPECT_FALSE(held_by_others({&part})) << "only the tensor itself holds its base";
  again = detached_alias(part);
  EXPECT_TRUE(held_by_others({&part}));
}

TEST(MoveIntoCopy, KeepsWhatIsShared) {
  const at::Tensor memory = at::arange(12);
  at::Tensor a = memory.view({3, 4}).narrow(0, 1, 2);
  at::Tensor b = memory.narrow(0, 2, 4);
  at::Tensor empty = memory.narrow(0, 0, 0);
  const at::Tensor want_a = a.clone();
  const at::Tensor want_b = b.clone();
  move_into_copy({&empty, &a, &b});
  EXPECT_TRUE(at::equal(a, want_a));
  EXPECT_TRUE(at::equal(b, want_b));
  EXPECT_FALSE(a.is_alias_of(memory));
  a[0][0] = -1;
  EXPECT_EQ(b[2].item<int64_t>(), -1);
  EXPECT_EQ(memory[4].item<int64_t>(), 4);
  EXPECT_FALSE(held_by_others({&a, &b}));

  at::Tensor floats = at::zeros({2});
  at::Tensor bits = floats.view(at::kInt);
  move_into_copy({&floats, &bits});
  EXPECT_FALSE(floats.is_alias_of(bits)) << "elements of other sizes are copied one by one";
}

TEST(CopyInLayout, KeepsValuesAndStridesInMemoryOfItsOwn) {
  const at::Tensor x = at::arange(60).view({3, 4, 5});
  for (const at::Tensor& tensor :
       {x, x.transpose(0, 2), x.narrow(2, 1, 3), x.select(1, 2), x.slice(0, 0, 3, 2),
        x.narrow(0, 1, 1).expand({4, 4, 5}), x.narrow(0, 0, 0)}) {
    const at::Tensor copy = copy_in_layout(tensor);
    EXPECT_TRUE(at::equal(copy, tensor));
    EXPECT_FALSE(copy.is_alias_of(x));
    EXPECT_FALSE(copy.is_view());
    if (tensor.numel() > 0) {
      EXPECT_EQ(copy.strides(), tensor.strides());
      auto place = [](const at::Tensor& t) {
        return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 64;
      };
      EXPECT_EQ(place(copy), place(tensor));
    }
  }
}

TEST(SharesStorage, CountsTensorsOverTheStorage) {
  at::Tensor x = at::zeros({4});
  const at::Tensor same = x;  // the same object
  EXPECT_FALSE(shares_storage(x));
  {
    const at::Tensor view = x.view({2, 2});
    EXPECT_TRUE(shares_storage(x));
    EXPECT_EQ(storage_of(view), storage_of(x));
  }
  EXPECT_FALSE(shares_storage(x));
  EXPECT_FALSE(shares_storage(at::Tensor()));
}

TEST(MayOverlap, TellsBlocksOfOneTensorApart) {
  const at::Tensor x = at::zeros({4, 6});
  EXPECT_TRUE(may_overlap(x, x.view({24})));
  EXPECT_TRUE(may_overlap(x, x.t()));
  EXPECT_FALSE(may_overlap(x, x.clone()));
  EXPECT_FALSE(may_overlap(x.narrow(0, 0, 2), x.narrow(0, 2, 2)));
  EXPECT_TRUE(may_overlap(x.narrow(0, 0, 3), x.narrow(0, 2, 2)));
  EXPECT_FALSE(may_overlap(x.narrow(1, 0, 3), x.narrow(1, 3, 3)));
  EXPECT_TRUE(may_overlap(x.narrow(1, 0, 4), x.narrow(1, 3, 3)));
  EXPECT_FALSE(may_overlap(x.narrow(1, 0, 3).t(), x.narrow(1, 3, 3)));
  EXPECT_FALSE(may_overlap(x.select(1, 2), x.select(1, 3)));
  // If a dimension has one element, its stride does not matter.
  EXPECT_FALSE(may_overlap(x.narrow(1, 0, 3).as_strided({1, 4, 3}, {0, 6, 1}), x.narrow(1, 3, 3)));
  EXPECT_TRUE(may_overlap(x.select(1, 2), x.select(0, 3)));
  EXPECT_FALSE(may_overlap(x.narrow(0, 0, 0), x));
  EXPECT_FALSE(may_overlap(at::Tensor(), x));
}

// The blocks' strides, 2 and 3, are not multiples of each other. Still the blocks are found to be
// apart.
TEST(MayOverlap, WhatBeginsWhereTheOtherEndsIsApart) {
  const at::Tensor memory = at::zeros({12});
  const at::Tensor first = memory.as_strided({3}, {2}, 0);   // up to 4
  const at::Tensor second = memory.as_strided({2}, {3}, 5);  // from 5 on
  EXPECT_FALSE(may_overlap(first, second));
  EXPECT_FALSE(may_overlap(second, first));
}

TEST(MayOverlap, CountsBytesWhereTypesDiffer) {
  const at::Tensor z = at::zeros({8}, at::kComplexFloat);
  const at::Tensor reals = at::view_as_real(z);
  EXPECT_TRUE(may_overlap(z.narrow(0, 4, 4), reals.narrow(0, 4, 4)));
  EXPECT_TRUE(may_overlap(reals.narrow(0, 4, 4), z.narrow(0, 4, 4)));
  EXPECT_FALSE(may_overlap(z.narrow(0, 4, 4), reals.narrow(0, 0, 4)));
}

// The result is compared with sets of addresses. It must never be "no" if these sets intersect.
TEST(MayOverlap, IsNeverWrongWhenItSaysNo) {
  std::mt19937 random(7);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  auto slice = [&](at::Tensor t) {
    for (int64_t d = 0; d < t.dim(); ++d) {
      const int64_t start = pick(0, t.size(d) - 1);
      t = t.narrow(d, start, pick(1, t.size(d) - start));
    }
    if (t.dim() > 0 && pick(0, 3) == 0) t = t.select(pick(0, t.dim() - 1), 0);
    if (t.dim() > 1 && pick(0, 3) == 0) t = t.transpose(0, 1);
    if (t.dim() > 0 && pick(0, 3) == 0) t = t.slice(0, 0, t.size(0), 2);
    return t;
  };
  auto addresses = [](const at::Tensor& t, const at::Tensor& numbers) {
    const at::Tensor flat =
        numbers.as_strided(t.sizes(), t.strides(), t.storage_offset()).contiguous().view({-1});
    return std::set<int64_t>(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  };
  int apart = 0;
  int said_no = 0;
  for (int k = 0; k < 3000; ++k) {
    const at::Tensor base = at::arange(4 * 3 * 5, at::kLong).view({4, 3, 5});
    const at::Tensor a = slice(base);
    const at::Tensor b = slice(base);
    const std::set<int64_t> of_a = addresses(a, base);
    const std::set<int64_t> of_b = addresses(b, base);
    bool meet = false;
    for (int64_t address : of_a) meet = meet || of_b.count(address) != 0;
    if (meet) {
      EXPECT_TRUE(may_overlap(a, b)) << a.sizes() << a.strides() << b.sizes() << b.strides();
    } else {
      ++apart;
      said_no += may_overlap(a, b) ? 0 : 1;
    }
  }
  // may_overlap() must not simply return true always.
  EXPECT_GT(said_no, apart * 3 / 4) << "of " << apart;
}

TEST(CountedAlias, CountsWhatInferenceModeDoesNot) {
  const c10::InferenceMode mode;
  const at::Tensor whole = at::arange(12.0).reshape({3, 4});
  const at::Tensor part = whole.slice(0, 1).t();
  ASSERT_TRUE(part.is_inference());
  const at::Tensor alias = counted_alias(part);
  EXPECT_FALSE(alias.is_inference());
  EXPECT_EQ(alias.sizes(), part.sizes());
  EXPECT_EQ(alias.strides(), part.strides());
  EXPECT_EQ(alias.const_data_ptr(), part.const_data_ptr());
  const int64_t before = version_of(alias);
  (void)(alias * 2);
  EXPECT_EQ(version_of(alias), before);
  alias.add_(1);
  EXPECT_GT(version_of(alias), before);
  at::Tensor row = alias.select(0, 0);
  at::relu_(row);
  EXPECT_GT(version_of(alias), before + 1) << "through a view";
  EXPECT_EQ(whole[1][0].item<float>(), 5) << "the same memory";
}

TEST(CountedAlias, OthersAreReturnedAsTheyAre) {
  const at::Tensor plain = at::zeros({2});
  EXPECT_TRUE(counted_alias(plain).is_same(plain));
  EXPECT_FALSE(counted_alias(at::Tensor()).defined());
  const c10::InferenceMode mode;
  const at::Tensor sparse = at::zeros({2, 2}).to_sparse();
  EXPECT_TRUE(counted_alias(sparse).is_same(sparse));
}

}  // namespace
}  // namespace gpipe::internal
