#include "gpipe/testing/fake_accelerator/footprint.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "gpipe/testing/seed.h"

namespace gpipe::testing::fake {
namespace {

using Numbers = std::vector<int64_t>;

char memory[4096];

TEST(Footprint, OfNothingOverlapsNothing) {
  const Footprint all(memory, 4096);
  EXPECT_TRUE(Footprint().empty());
  EXPECT_TRUE(Footprint(memory, 4, {3, 0}, {1, 1}).empty());
  EXPECT_FALSE(all.overlaps(Footprint(memory, 4, {3, 0}, {1, 1})));
  EXPECT_TRUE(all.surely_covers(Footprint()));
}

TEST(Footprint, RangesThatTouchDoNotOverlap) {
  EXPECT_FALSE(Footprint(memory, 8).overlaps(Footprint(memory + 8, 8)));
  EXPECT_TRUE(Footprint(memory, 9).overlaps(Footprint(memory + 8, 8)));
}

TEST(Footprint, AScalarIsOneElement) {
  const Footprint scalar(memory + 4, 4, {}, {});
  EXPECT_EQ(scalar.end() - scalar.begin(), 4);
}

// `left` and `right` are the first and the last two columns of a [3, 4] matrix that is stored by
// rows.
TEST(Footprint, ColumnsOfAMatrixAreDisjointRowsToo) {
  const Footprint left(memory, 4, {3, 2}, {4, 1}), right(memory + 8, 4, {3, 2}, {4, 1});
  EXPECT_FALSE(left.overlaps(right));
  EXPECT_FALSE(right.overlaps(left));
  EXPECT_TRUE(left.overlaps(Footprint(memory + 16, 4, {4}, {1}))) << "the second row";
  EXPECT_TRUE(left.surely_covers(left));
  EXPECT_FALSE(left.surely_covers(right));
  EXPECT_TRUE(Footprint(memory, 48).surely_covers(left));
  EXPECT_FALSE(left.surely_covers(Footprint(memory, 48)));
}

TEST(Footprint, ATransposedOrExpandedTensorHasNoGaps) {
  const Footprint transposed(memory, 4, {4, 3}, {1, 4});
  EXPECT_TRUE(transposed.surely_covers(Footprint(memory, 48)));
  const Footprint expanded(memory, 4, {5, 3}, {0, 1});
  EXPECT_EQ(expanded.end() - expanded.begin(), 12);
}

TEST(Footprint, AgreesWithListsOfBytes) {
  std::mt19937_64 random = test_random();
  auto number = [&](int64_t below) { return static_cast<int64_t>(random() % below); };
  auto make = [&](std::set<int64_t>& bytes) {
    const int64_t offset = number(40), item = 1 + number(4);
    Numbers sizes, strides;
    std::vector<int64_t> offsets = {offset};
    for (int64_t d = number(4); d > 0; --d) {
      sizes.push_back(1 + number(4)), strides.push_back(number(8));
      std::vector<int64_t> next;
      for (int64_t i = 0; i < sizes.back(); ++i) {
        for (int64_t a : offsets) next.push_back(a + i * strides.back() * item);
      }
      offsets = next;
    }
    for (int64_t a : offsets) {
      for (int64_t i = 0; i < item; ++i) bytes.insert(a + i);
    }
    return Footprint(memory + offset, static_cast<size_t>(item), sizes, strides);
  };
  int overlapping = 0, covering = 0;
  for (int i = 0; i < 3000; ++i) {
    std::set<int64_t> in_a, in_b;
    const Footprint a = make(in_a), b = make(in_b);
    bool common = false, all = true;
    for (int64_t byte : in_b) {
      common = common || in_a.count(byte) > 0;
      all = all && in_a.count(byte) > 0;
    }
    EXPECT_EQ(a.overlaps(b), common) << i;
    EXPECT_EQ(b.overlaps(a), common) << i;
    EXPECT_EQ(a.begin() - memory, *in_a.begin());
    EXPECT_EQ(a.end() - memory, *in_a.rbegin() + 1);
    if (a.surely_covers(b)) {
      EXPECT_TRUE(all) << i;
      ++covering;
    }
    overlapping += common ? 1 : 0;
  }
  EXPECT_GT(overlapping, 300) << "with fewer the random cases would show little";
  EXPECT_LT(overlapping, 2700);
  EXPECT_GT(covering, 10);
}

}  // namespace
}  // namespace gpipe::testing::fake
