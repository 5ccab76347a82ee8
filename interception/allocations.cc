#include "interception/allocations.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

namespace gpipe::internal {
namespace {

// The current scope, and its number: an observer is told of a block's end only by the scope that
// told it of its beginning.
struct Current {
  std::shared_mutex mutex;  // exclusive: scopes begin and end; shared: observers are called
  AllocationObserver* observer = nullptr;
  uint64_t scope = 0;
};
Current& current() {
  static auto* const current_scope = new Current;  // blocks are given back until the very end
  return *current_scope;
}

struct Block {
  uint64_t id = 0;
  uint64_t scope = 0;
};

Block begin(c10::Device device, size_t bytes) {
  static std::atomic<uint64_t> last{0};
  Current& now = current();
  std::shared_lock<std::shared_mutex> lock(now.mutex);
  if (now.observer == nullptr) return {};
  const Block block{++last, now.scope};
  now.observer->on_allocate(block.id, device, static_cast<int64_t>(bytes));
  return block;
}

void end(const Block& block) {
  Current& now = current();
  std::shared_lock<std::shared_mutex> lock(now.mutex);
  if (now.observer != nullptr && now.scope == block.scope) now.observer->on_free(block.id);
}

// The blocks of memory that are seen, by address. LibTorch may take a block with one DataPtr and
// give it back by its address alone, so the address has to be enough.
class Blocks {
 public:
  void add(void* address, Block block) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.blocks[address] = block;
  }
  // An id of 0: not seen.
  Block take(void* address) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) return {};
    const Block block = found->second;
    shard.blocks.erase(found);
    return block;
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  Shard& shard_of(void* address) {
    return shards_[(reinterpret_cast<uintptr_t>(address) >> 6) % shards_.size()];
  }
  std::array<Shard, 16> shards_;
};
Blocks& blocks() {
  static auto* const seen_blocks = new Blocks;
  return *seen_blocks;
}

c10::DeleterFnPtr delete_cpu = nullptr;  // of LibTorch's own allocator

void free_cpu(void* address) {
  const Block block = blocks().take(address);
  delete_cpu(address);
  if (block.id != 0) end(block);
}

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = base_->allocate(bytes);
    void* const address = data.get();
    if (address == nullptr || data.get_context() != address) return data;
    const Block block = begin(c10::Device(c10::kCPU), bytes);
    if (block.id == 0) return data;
    blocks().add(address, block);
    TORCH_INTERNAL_ASSERT(data.compare_exchange_deleter(delete_cpu, &free_cpu));
    return data;
  }
  // For a block that was not seen it does what LibTorch's own does.
  c10::DeleterFnPtr raw_deleter() const override { return &free_cpu; }
  void copy_data(void* target, const void* source, size_t count) const override {
    base_->copy_data(target, source, count);
  }

 private:
  c10::Allocator* base_;
};

void free_meta(void* context) {
  auto* const block = static_cast<Block*>(context);
  end(*block);
  delete block;
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    // LibTorch's own takes no notice of the current device either, but has only one.
    const c10::Device device = c10::impl::VirtualGuardImpl(c10::kMeta).getDevice();
    const Block block = begin(device, bytes);
    if (block.id == 0) return {nullptr, device};
    return {nullptr, new Block(block), &free_meta, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*target*/, const void* /*source*/, size_t /*count*/) const override {}
};

#if GPIPE_TORCH_HAS_CUDA
// CUDA's allocator tells of its blocks itself, for the rest of the process. It holds a lock when it
// does: nothing here may call it.
void watch_cuda() {
  static const bool watching = [] {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    allocator::attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
      static auto* const seen = new Blocks;
      auto* const address = reinterpret_cast<void*>(entry.addr_);  // NOLINT: a device's address
      if (entry.action_ == allocator::TraceEntry::ALLOC) {
        const Block block = begin(c10::Device(c10::kCUDA, entry.device_), entry.size_);
        if (block.id != 0) seen->add(address, block);
      } else if (entry.action_ == allocator::TraceEntry::FREE_REQUESTED) {
        const Block block = seen->take(address);
        if (block.id != 0) end(block);
      }
    });
    return true;
  }();
  (void)watching;
}
#else
void watch_cuda() {
  throw std::logic_error("this LibTorch has no CUDA, whose blocks were asked for");
}
#endif

}  // namespace

void install_allocators() {
  static const bool installed = [] {
    c10::Allocator* const base = c10::GetCPUAllocator();
    delete_cpu = base->raw_deleter();
    // Without it blocks cannot be given back by address (no allocator of LibTorch's lacks it).
    if (delete_cpu == nullptr) throw std::logic_error("LibTorch's CPU allocator has no deleter");
    c10::SetCPUAllocator(new CpuAllocator(base), /*priority=*/200);
    c10::SetAllocator(c10::kMeta, new MetaAllocator, /*priority=*/200);
    return true;
  }();
  (void)installed;
}

AllocationScope::AllocationScope(AllocationObserver& observer, bool cuda) {
  install_allocators();
  if (cuda) watch_cuda();
  Current& now = current();
  std::unique_lock<std::shared_mutex> lock(now.mutex);
  if (now.observer != nullptr) {
    throw std::logic_error(
        "allocations are already being watched in this process; profile sizes, make memory "
        "plans and use StageMemory one after the other");
  }
  now.observer = &observer;
  ++now.scope;
}

AllocationScope::~AllocationScope() {
  Current& now = current();
  std::unique_lock<std::shared_mutex> lock(now.mutex);
  now.observer = nullptr;
}

}  // namespace gpipe::internal
