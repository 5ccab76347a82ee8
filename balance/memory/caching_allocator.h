// CachingAllocator: models what LibTorch's CUDA allocator would reserve for a sequence of blocks.
//
// The allocator takes segments from the driver, cuts blocks from them, and keeps blocks that are
// freed. So a device holds more than its tensors: the peak in `nvidia-smi` and in published tables
// is that of reserved bytes. The model follows the allocator's default settings in the source of
// LibTorch 2.11 (c10/cuda/CUDACachingAllocator.cpp). Its constants have been the same from 2019 to
// 2.15 (by its headers and the numbers in its compiled code):
//
// - a block is a multiple of 512 bytes;
// - blocks of up to 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of 20 MiB,
//   larger ones from segments of their own, in multiples of 2 MiB;
// - the smallest free block that fits is taken, and cut if what remains is at least 512 bytes (in
//   a segment of small blocks) or more than 1 MiB (in others); neighbors that are free join;
// - every stream has free blocks of its own;
// - if the device has no room for a segment, all segments that are entirely free are given back.
//
// Not modeled: blocks that are held until another stream has used them, the driver's own memory,
// and the workspaces of cuDNN and cuBLAS. (LibTorch 2.15 allocates and frees a cuBLAS workspace for
// each call; older versions keep one for each stream.)
#ifndef BALANCE_MEMORY_CACHING_ALLOCATOR_H_
#define BALANCE_MEMORY_CACHING_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "balance/memory/memory_trace.h"

namespace gpipe::balance {

// The allocator of one device.
class CachingAllocator {
 public:
  // `capacity`: the bytes that the driver can give; 0: no limit.
  explicit CachingAllocator(int64_t capacity = 0);
  ~CachingAllocator();

  struct Block;

  // Returns a block of `bytes`, above 0, for a stream, which is any number. Null: the device has no
  // room for it.
  Block* allocate(int64_t bytes, int64_t stream = 0);
  void free(Block* block);

  int64_t reserved() const { return reserved_; }
  int64_t peak_reserved() const { return peak_reserved_; }
  int64_t allocated() const { return allocated_; }

 private:
  // Stream, size, order of creation: a stream's best fit is its first block that is large enough.
  using Key = std::tuple<int64_t, int64_t, int64_t>;
  using Pool = std::map<Key, Block*>;

  Block* add(const Block& block);
  Pool& pool_of(const Block& block);
  static Key key_of(const Block& block);
  Block* take_free(Pool& pool, int64_t bytes, int64_t stream);
  Block* new_segment(bool small, int64_t bytes, int64_t stream);
  void give_back_free_segments();

  int64_t capacity_;
  int64_t reserved_ = 0;
  int64_t peak_reserved_ = 0;
  int64_t allocated_ = 0;
  int64_t last_number_ = 0;
  Pool small_, large_;                                               // free blocks
  std::unordered_map<const Block*, std::unique_ptr<Block>> blocks_;  // all, free or not
};

// Returns the most bytes that each device reserves while it runs through the trace; -1 for a device
// that runs out of `capacity` bytes (0: no limit). Throws std::invalid_argument for a block that is
// allocated twice or freed before it is allocated, and for one of less than 0 bytes.
std::vector<int64_t> peak_reserved(const MemoryTrace& trace, int64_t capacity = 0);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_CACHING_ALLOCATOR_H_
