#include "gpipe/chunk_sizes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe {
namespace {

void expect_sizes(int64_t rows, int64_t chunks, int64_t size, int64_t micro_batches) {
  const ChunkSizes sizes = chunk_sizes(rows, chunks);
  EXPECT_EQ(sizes.rows, size) << rows << " " << chunks;
  EXPECT_EQ(sizes.micro_batches, micro_batches) << rows << " " << chunks;
}

TEST(ChunkSizes, RoundUpAndLeaveOutChunksThatWouldBeEmpty) {
  expect_sizes(8, 4, 2, 4);
  expect_sizes(7, 4, 2, 4);
  expect_sizes(9, 4, 3, 3);
  expect_sizes(3, 5, 1, 3);
  expect_sizes(0, 3, 0, 1);
}

TEST(MicroBatchSizes, AreEqualButTheLast) {
  EXPECT_EQ(micro_batch_sizes(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(micro_batch_sizes(7, 4), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(micro_batch_sizes(9, 4), (std::vector<int64_t>{3, 3, 3}));
  EXPECT_EQ(micro_batch_sizes(0, 3), std::vector<int64_t>{0});
}

TEST(ChunkSizes, HoldForTheLargestNumbers) {
  expect_sizes(INT64_MAX, 2, INT64_MAX / 2 + 1, 2);
  expect_sizes(2, INT64_MAX, 1, 2);
  expect_sizes(INT64_MAX, INT64_MAX, 1, INT64_MAX);
}

}  // namespace
}  // namespace gpipe
