// chunk_sizes: how rows are cut into micro-batches. Numbers only, so that World needs no LibTorch.
#ifndef GPIPE_CHUNK_SIZES_H_
#define GPIPE_CHUNK_SIZES_H_

#include <cstdint>
#include <vector>

namespace gpipe {

// Each micro-batch has ceil(rows / chunks) rows and the last one the remainder, as with
// Tensor::chunk, so there may be fewer micro-batches than chunks. With no rows there is one empty
// micro-batch.
struct ChunkSizes {
  int64_t rows = 0;  // the rows of each micro-batch except the last
  int64_t micro_batches = 1;
};
ChunkSizes chunk_sizes(int64_t rows, int64_t chunks);

// [micro-batch] The number of its rows.
std::vector<int64_t> micro_batch_sizes(int64_t rows, int64_t chunks);

}  // namespace gpipe

#endif  // GPIPE_CHUNK_SIZES_H_
