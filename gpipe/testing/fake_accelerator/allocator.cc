#include "gpipe/testing/fake_accelerator/allocator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe::testing::fake {
namespace {

constexpr size_t kSmallest = 512;  // the smallest block and the alignment in bytes, as on CUDA

}  // namespace

void Allocator::FreeBytes::operator()(char* bytes) const { std::free(bytes); }

Allocator::~Allocator() {
  runtime_.drain();
  for (const auto& [begin, block] : blocks_) runtime_.remove_block(begin);
}

void* Allocator::allocate(StreamId owner, size_t bytes) {
  return allocate(std::optional<StreamId>(owner), bytes);
}

void* Allocator::allocate_pinned(size_t bytes) { return allocate(std::nullopt, bytes); }

void* Allocator::allocate(std::optional<StreamId> owner, size_t bytes) {
  size_t size = kSmallest;
  while (size < bytes) size *= 2;
  std::lock_guard<std::mutex> lock(mutex_);
  if (owner) take(devices_.at(owner->device), bytes, size);
  collect();
  int64_t pool = 0;
  if (owner) {
    const auto current = current_pools_.find(*owner);
    if (current != current_pools_.end()) pool = current->second;
  }
  std::vector<Block*>& free = free_[{owner, pool, size}];
  Block* block = nullptr;
  if (!free.empty()) {
    block = free.back();
    free.pop_back();
    ++counts_.reused;
  } else {
    auto new_block = std::make_unique<Block>();
    new_block->bytes.reset(static_cast<char*>(std::aligned_alloc(kSmallest, size)));
    if (new_block->bytes == nullptr) throw std::bad_alloc();
    new_block->size = size;
    new_block->owner = owner;
    new_block->pool = pool;
    block = new_block.get();
    runtime_.add_block(block->bytes.get(), size,
                       (owner ? "block of " + to_text(*owner) : "block of pinned memory") + ", " +
                           std::to_string(size) + " bytes");
    blocks_[block->bytes.get()] = std::move(new_block);
    ++counts_.from_system;
  }
  block->allocated = true;
  poison(*block, "allocation");
  return block->bytes.get();
}

// Counts `size` bytes as used, or throws Short if there are too few. `asked`: the bytes that the
// caller wanted, from which `size` was rounded up.
void Allocator::take(Device& device, size_t asked, size_t size) {
  const bool told = device.fail_after == 0;
  if (device.fail_after >= 0) --device.fail_after;
  if (told || device.in_use + size > device.total) {
    ++failures_;
    Short error;
    error.asked = asked;
    error.free = device.total - std::min(device.in_use, device.total);
    error.total = device.total;
    throw error;
  }
  device.in_use += size;
  device.peak = std::max(device.peak, device.in_use);
}

void Allocator::limit(int device, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_.at(device).total = bytes;
}

void Allocator::fail(int device, int64_t before) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_.at(device).fail_after = before;
}

int64_t Allocator::failures() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failures_;
}

size_t Allocator::in_use(int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_.at(device).in_use;
}

size_t Allocator::peak(int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return devices_.at(device).peak;
}

void Allocator::reset_peak(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_.at(device).peak = devices_.at(device).in_use;
}

void Allocator::free(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  Block* block = find(address);
  if (block == nullptr || !block->allocated || block->bytes.get() != address) {
    throw std::logic_error("freed a block that is not allocated");
  }
  block->allocated = false;
  if (block->owner) devices_.at(block->owner->device).in_use -= block->size;
  if (!block->users.empty() && block->owner && anything_recorded_on(block->owner->device)) {
    deferred_.push_back(block);  // during a recording no event may be recorded
  } else {
    await_users(*block);
  }
}

bool Allocator::anything_recorded_on(int device) const {
  const auto first = current_pools_.lower_bound({device, 0});
  return first != current_pools_.end() && first->first.device == device;
}

void Allocator::await_users(Block& block) {
  for (const StreamId& user : block.users) block.pending.push_back(runtime_.record(user));
  block.users.clear();
  if (block.pending.empty()) {
    keep(block);
  } else {
    pending_.push_back(&block);
  }
}

void Allocator::record(const void* address, StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Block* block = find(address);
  if (block == nullptr || !block->allocated || block->owner == stream) return;
  block->users.insert(stream);
  if (block->owner && anything_recorded_on(block->owner->device)) block->lost.insert(stream);
}

bool Allocator::is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Block* block = find(address);
  return block != nullptr && block->allocated && !block->owner;
}

Allocator::Counts Allocator::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

Allocator::Block* Allocator::find(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  const auto next = blocks_.upper_bound(byte);
  if (next == blocks_.begin()) return nullptr;
  Block* block = std::prev(next)->second.get();
  return byte < block->bytes.get() + block->size ? block : nullptr;
}

// Takes back blocks whose events are over. It runs when memory is requested, as in LibTorch's
// allocators.
void Allocator::collect() {
  std::vector<Block*> deferred;
  deferred.swap(deferred_);
  for (Block* block : deferred) {
    if (anything_recorded_on(block->owner->device)) {
      deferred_.push_back(block);
      continue;
    }
    for (const StreamId& stream : block->lost) block->users.erase(stream);
    block->lost.clear();
    await_users(*block);
  }
  const auto still_used = [this](Block* block) {
    for (const Event& event : block->pending) {
      if (!runtime_.is_over(event)) return true;
    }
    // Only this block's history is joined with the events. If the host counted as having seen that
    // the events are over, all that it launches next would, by chance, be ordered behind them.
    VectorClock seen;
    for (const Event& event : block->pending) Runtime::join(seen, event);
    runtime_.forget_accesses(block->bytes.get(), seen);
    block->pending.clear();
    keep(*block);
    return false;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                [&](Block* block) { return !still_used(block); }),
                 pending_.end());
}

void Allocator::keep(Block& block) {
  const auto users = pool_users_.find(block.pool);
  if (users != pool_users_.end() && users->second == 0) return discard(block);
  // A block of a graph that is freed after the recording keeps its contents, because a replay in
  // progress may still read it.
  if (block.pool == 0 || runtime_.is_recording(*block.owner)) poison(block, "free");
  free_[{block.owner, block.pool, block.size}].push_back(&block);
}

int64_t Allocator::make_pool() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++last_pool_;
}

void Allocator::add_user(int64_t pool) {
  const auto [users, first] = pool_users_.try_emplace(pool, 0);
  if (!first && users->second == 0) {
    throw std::logic_error("the pool has died with the last graph that was recorded in it");
  }
  ++users->second;
}

void Allocator::use_pool(int64_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  add_user(pool);
}

void Allocator::begin_pool(StreamId owner, int64_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  add_user(pool);
  current_pools_[owner] = pool;
}

void Allocator::end_pool(StreamId owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  current_pools_.erase(owner);
}

void Allocator::release_pool(int64_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto users = pool_users_.find(pool);
  if (users == pool_users_.end() || users->second == 0) {
    throw std::logic_error("the pool has no users");
  }
  if (--users->second > 0) return;
  for (auto& [kind, blocks] : free_) {
    if (std::get<1>(kind) != pool) continue;
    for (Block* block : std::exchange(blocks, {})) discard(*block);
  }
}

void Allocator::discard(Block& block) {
  runtime_.drain();
  runtime_.remove_block(block.bytes.get());
  blocks_.erase(block.bytes.get());
}

void Allocator::poison(Block& block, const char* why) {
  char* bytes = block.bytes.get();
  const size_t size = block.size;
  const Access access{Footprint(bytes, size), /*write=*/true};
  if (!block.owner) {
    runtime_.host_access(std::string(why) + " by the host", access);
    std::memset(bytes, 0xFF, size);
    return;
  }
  runtime_.launch(
      *block.owner,
      {why, Task::Kind::kUpkeep, {access}, [bytes, size] { std::memset(bytes, 0xFF, size); }, {}});
}

}  // namespace gpipe::testing::fake
