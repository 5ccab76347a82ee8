#include "gpipe/cut_sizes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe {
namespace {

void expect_cut(int64_t rows, int64_t chunks, int64_t size, int64_t micro_batches) {
  const CutSizes cut = cut_sizes(rows, chunks);
  EXPECT_EQ(cut.rows, size) << rows << " " << chunks;
  EXPECT_EQ(cut.micro_batches, micro_batches) << rows << " " << chunks;
}

TEST(CutSizes, RoundUpAndLeaveOutChunksThatWouldBeEmpty) {
  expect_cut(8, 4, 2, 4);
  expect_cut(7, 4, 2, 4);
  expect_cut(9, 4, 3, 3);
  expect_cut(3, 5, 1, 3);
  expect_cut(0, 3, 0, 1);
}

TEST(MicroBatchSizes, AreEqualButTheLast) {
  EXPECT_EQ(micro_batch_sizes(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(micro_batch_sizes(7, 4), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(micro_batch_sizes(9, 4), (std::vector<int64_t>{3, 3, 3}));
  EXPECT_EQ(micro_batch_sizes(0, 3), std::vector<int64_t>{0});
}

TEST(CutSizes, HoldForTheLargestNumbers) {
  expect_cut(INT64_MAX, 2, INT64_MAX / 2 + 1, 2);
  expect_cut(2, INT64_MAX, 1, 2);
  expect_cut(INT64_MAX, INT64_MAX, 1, INT64_MAX);
}

}  // namespace
}  // namespace gpipe
