#include "gpipe/chunk_sizes.h"

#include <algorithm>

namespace gpipe {
namespace {

// a / b, rounded up, without a sum that could overflow.
int64_t quotient(int64_t a, int64_t b) { return a / b + (a % b == 0 ? 0 : 1); }

}  // namespace

ChunkSizes chunk_sizes(int64_t rows, int64_t chunks) {
  if (rows == 0) return {};
  const int64_t size = quotient(rows, std::min(chunks, rows));
  return {size, quotient(rows, size)};
}

std::vector<int64_t> micro_batch_sizes(int64_t rows, int64_t chunks) {
  const ChunkSizes each = chunk_sizes(rows, chunks);
  std::vector<int64_t> sizes(each.micro_batches, each.rows);
  sizes.back() = rows - each.rows * (each.micro_batches - 1);
  return sizes;
}

}  // namespace gpipe
