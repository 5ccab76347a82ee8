#include "balance/memory/caching_allocator.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::balance {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kUnit = 512;    // blocks are multiples of this
constexpr int64_t kSmall = kMiB;  // the largest block of a small segment
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLarge = 10 * kMiB;  // larger blocks have segments of their own
constexpr int64_t kLargeSegment = 20 * kMiB;
constexpr int64_t kRoundLarge = 2 * kMiB;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// A piece of a segment, free or not.
struct CachingAllocator::Block {
  int64_t bytes = 0;
  int64_t stream = 0;
  int64_t number = 0;
  bool small = false;
  bool free = false;
  Block* before = nullptr;  // the block before it in the same segment
  Block* after = nullptr;
};

CachingAllocator::CachingAllocator(int64_t capacity) : capacity_(capacity) {}

CachingAllocator::~CachingAllocator() = default;

CachingAllocator::Block* CachingAllocator::add(const Block& block) {
  auto owned = std::make_unique<Block>(block);
  owned->number = ++last_number_;
  Block* const added = owned.get();
  blocks_[added] = std::move(owned);
  return added;
}

CachingAllocator::Pool& CachingAllocator::pool_of(const Block& block) {
  return block.small ? small_ : large_;
}

CachingAllocator::Key CachingAllocator::key_of(const Block& block) {
  return {block.stream, block.bytes, block.number};
}

CachingAllocator::Block* CachingAllocator::take_free(Pool& pool, int64_t bytes, int64_t stream) {
  const auto found = pool.lower_bound(Key{stream, bytes, 0});
  if (found == pool.end() || found->second->stream != stream) return nullptr;
  Block* const block = found->second;
  pool.erase(found);
  return block;
}

CachingAllocator::Block* CachingAllocator::new_segment(bool small, int64_t bytes, int64_t stream) {
  const int64_t size = small            ? kSmallSegment
                       : bytes < kLarge ? kLargeSegment
                                        : rounded(bytes, kRoundLarge);
  if (capacity_ > 0 && reserved_ + size > capacity_) give_back_free_segments();
  if (capacity_ > 0 && reserved_ + size > capacity_) return nullptr;
  reserved_ += size;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  Block block;
  block.bytes = size;
  block.stream = stream;
  block.small = small;
  return add(block);
}

void CachingAllocator::give_back_free_segments() {
  for (Pool* pool : {&small_, &large_}) {
    for (auto entry = pool->begin(); entry != pool->end();) {
      Block* const block = entry->second;
      if (block->before != nullptr || block->after != nullptr) {
        ++entry;
        continue;
      }
      reserved_ -= block->bytes;
      entry = pool->erase(entry);
      blocks_.erase(block);
    }
  }
}

CachingAllocator::Block* CachingAllocator::allocate(int64_t bytes, int64_t stream) {
  const int64_t size = rounded(bytes, kUnit);
  const bool small = size <= kSmall;
  Block* block = take_free(small ? small_ : large_, size, stream);
  if (block == nullptr) block = new_segment(small, size, stream);
  if (block == nullptr) return nullptr;
  const int64_t rest = block->bytes - size;
  if (small ? rest >= kUnit : rest > kSmall) {
    Block* const remaining = add(*block);
    remaining->bytes = rest;
    remaining->free = true;
    remaining->before = block;
    if (block->after != nullptr) block->after->before = remaining;
    block->after = remaining;
    block->bytes = size;
    pool_of(*remaining)[key_of(*remaining)] = remaining;
  }
  block->free = false;
  allocated_ += block->bytes;
  return block;
}

void CachingAllocator::free(Block* block) {
  allocated_ -= block->bytes;
  Pool& pool = pool_of(*block);
  // Merges `other` into `block`.
  const auto absorb = [&](Block* other) {
    pool.erase(key_of(*other));
    block->bytes += other->bytes;
    blocks_.erase(other);
  };
  if (Block* const before = block->before; before != nullptr && before->free) {
    block->before = before->before;
    if (block->before != nullptr) block->before->after = block;
    absorb(before);
  }
  if (Block* const after = block->after; after != nullptr && after->free) {
    block->after = after->after;
    if (block->after != nullptr) block->after->before = block;
    absorb(after);
  }
  block->free = true;
  pool[key_of(*block)] = block;
}

std::vector<int64_t> peak_reserved(const MemoryTrace& trace, int64_t capacity) {
  std::vector<std::unique_ptr<CachingAllocator>> devices;
  for (int32_t d = 0; d < trace.devices; ++d) {
    devices.push_back(std::make_unique<CachingAllocator>(capacity));
  }
  std::vector<bool> full(trace.devices);
  std::vector<CachingAllocator::Block*> held(trace.blocks.size());
  for (const MemoryEvent& event : trace.events) {
    const MemoryBlock& block = trace.blocks[event.block];
    if (full[block.device] || block.bytes == 0) continue;
    CachingAllocator& device = *devices[block.device];
    if (block.bytes < 0 || event.free != (held[event.block] != nullptr)) {
      throw std::invalid_argument(
          "a trace of memory has a block of " + std::to_string(block.bytes) + " bytes, number " +
          std::to_string(event.block) +
          ", that is taken twice, or given back before it is taken; each "
          "has at least 0 bytes, is taken once and given back at most once");
    }
    if (event.free) {
      device.free(std::exchange(held[event.block], nullptr));
      continue;
    }
    held[event.block] = device.allocate(block.bytes, block.copied_from + 1);
    full[block.device] = held[event.block] == nullptr;
  }
  std::vector<int64_t> result;
  for (int32_t d = 0; d < trace.devices; ++d) {
    result.push_back(full[d] ? -1 : devices[d]->peak_reserved());
  }
  return result;
}

}  // namespace gpipe::balance
